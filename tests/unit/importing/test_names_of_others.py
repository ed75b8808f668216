"""Names of verl and NeMo-RL in a manifest: they lead to the fields that an import makes of them."""

from typing import Any

import pytest

from rljob_api.facts import System, facts, fields
from rljob_api.reading.field_lookup import OF_NEMO_RL, OF_VERL, meant, spelled
from rljob_api.sections import Spec
from rljob_importing import nemo_rl_keys, verl_keys
from rljob_importing.mapping import Entry, Field, Joint
from rljob_importing.slime_flags import FLAGS


@pytest.mark.parametrize(("keys", "names"), [(verl_keys.KEYS, OF_VERL), (nemo_rl_keys.KEYS, OF_NEMO_RL)])
def test_a_name_means_what_an_import_makes_of_it(keys: dict[str, Any], names: dict[str, str]):
    imported: dict[str, list[str]] = {}
    for key, entry in keys.items():
        if isinstance(entry, Field | Joint):
            fields = entry.path if isinstance(entry, Field) else entry.fields
            imported.setdefault(spelled(key.rpartition(".")[2]), []).append(f"spec.{fields.partition(',')[0]}")
    wrong = {
        name: (field, imported.get(name))
        for name, field in names.items()
        if not any(field.startswith(each) for each in imported.get(name, ()))
    }
    assert wrong == {}


@pytest.mark.parametrize(("name", "field"), [*OF_VERL.items(), *OF_NEMO_RL.items()])
def test_a_name_of_another_system_leads_to_its_field(name: str, field: str):
    assert meant(("spec",), name.replace("-", "_")) == field


@pytest.mark.parametrize(
    ("system", "table"),
    [("slime", FLAGS), ("megatron", FLAGS), ("verl", verl_keys.KEYS), ("nemo_rl", nemo_rl_keys.KEYS)],
)
def test_a_name_of_two_fields_is_not_read_as_one_of_them(system: System, table: dict[str, Entry]):
    names = [name for _, field in fields(Spec) for name in facts(field).names(system)]

    assert [name for name in names if names.count(name) > 1 and isinstance(table[name], Field)] == []
