"""What is a secret, by its name or by its form, and what people are shown of a manifest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yaml import safe_load

from rljob_api import credentials
from rljob_api.credentials import (
    HIDDEN,
    WITH_SECRET,
    holds_secret,
    is_secret,
    names_secret,
    secret_names,
    without_values,
)
from rljob_api.reading.lenient import readable
from rljob_api.reading.manifest import problems
from support.api.bad_manifests import table
from support.processor_time import measured

OF_SECRETS = [
    "HF_TOKEN",
    "hf_token",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "OPENAI_API_KEY",
    "OPENAI_APIKEY",
    "OPENAI_API_KEYS",
    "PGPASSWORD",
    "DB_PASSWD",
    "DB_PASS",
    "MYSQL_PWD",
    "WANDB_API_KEY",
    "JUDGE_AUTHORIZATION",
    "MY_SECRET",
    "AZURE_CREDENTIALS",
    "GITHUB_TOKEN_2",
    "API_KEY_BASE64",
    "TOKEN",
    "KEY",
    "Api-Key",
    "SSH_PASSPHRASE",
    "HUGGING_FACE_HUB_TOKEN",
    "MYTOKEN",
    "SECRETS",
    "SECRET_KEY_BASE",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "RAY_AUTH_TOKEN",
    "RAY_REDIS_PASSWORD",
    "SGLANG_S3_SECRET_ACCESS_KEY",
]


@pytest.mark.parametrize("name", OF_SECRETS)
def test_a_name_that_ends_like_a_secret_is_one(name: str):
    assert names_secret(name)


OF_OTHERS = [
    "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
    "TOKENIZERS_PARALLELISM",
    "MAX_TOKENS",
    "MAX_TOKEN",
    "NUM_TOKENS",
    "EOS_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "NCCL_IB_PKEY",
    "MONKEY",
    "HF_TOKEN_PATH",
    "WANDB_IDENTITY_TOKEN_FILE",
    "RAY_AUTH_MODE",
    "LABEL_KEY",
    "PWD",
    "HF_HOME",
    "TORCH_COMPILE_STICKY_PGO_KEY",
    "NCCL_DEBUG",
    "TOKENIZER",
    "SGLANG_PER_TOKEN_GROUP_QUANT_8BIT_V2",
    "PYTHONPATH",
    "SECRETARY",
    "KEYBOARD",
    "BYPASS",
    "MAX_PASSES",
    "SGLANG_ROUTING_KEY_POLICY_DEBUG_LOG",
    "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION",
]


@pytest.mark.parametrize("name", OF_OTHERS)
def test_other_names_are_none(name: str):
    assert not names_secret(name)


@pytest.mark.parametrize("value", ["", "0", "true", "None", "/secrets/hub/token", "$HF_TOKEN", "$(HF_TOKEN)", HIDDEN])
def test_a_switch_a_file_or_another_variable_is_no_secret(value: str):
    assert not is_secret("HF_TOKEN", value)


@pytest.mark.parametrize(
    "value",
    [
        "Bearer sk-123456",
        "basic dXNlcjpwYXNz",
        "http://me:secret@proxy:3128",
        "https://ghp_0123456789abcdef@github.com/x.git",
        "--index-url https://a:b@packages/simple",
        "https://judge/score?model=a&api_key=0123",
        "https://blob/x?sv=1&sig=abc",
        "postgres://u:p@host/db",
        "-----BEGIN RSA PRIVATE KEY-----\nMII",
        "hf_abcdefghijklmnop",
        "AKIAABCDEFGHIJKLMNOP",
    ],
)
def test_a_text_with_the_form_of_a_secret_is_one_under_any_name(value: str):
    assert holds_secret(value)
    assert is_secret("PLAIN", value)


@pytest.mark.parametrize(
    "value",
    [
        "x",
        "http://judge:8000/score?answers=1",
        "https://x/y?key=",
        "git@github.com:a/b",
        "hf://org/a@main",
        "a bearer of",
    ],
)
def test_other_texts_are_none(value: str):
    assert not is_secret("PLAIN", value)


PARTS = ["Bearer", "bAsic", "BAſIC", " ", "abcdef", "hf_", "sk-", "ghp_", "ghx_", "xoxb-", "AKIA", "ASIA", "Q" * 16]
PARTS += [
    "x" * 12,
    "://",
    "?",
    "&",
    "api_key=",
    "=",
    "@",
    "a",
    "-----BEGIN ",
    "RSA ",
    "PRIVATE KEY-----",
    "github_pat_",
]


@given(st.lists(st.sampled_from(PARTS), max_size=6).map("".join))
def test_the_fast_look_finds_what_the_patterns_find(text: str):
    by_patterns = credentials._FORMS.search(text) or credentials._IN_URL.search(text)
    assert holds_secret(text) == (by_patterns is not None)


def test_what_people_see_has_no_values_of_variables_passwords_or_tokens():
    shown = without_values(
        {
            "spec": {
                "runtime": {"env": {"A": "one", "B": {"valueFrom": {"secretKeyRef": {"name": "n", "key": "token"}}}}},
                "reward": {"remote": {"url": "https://me:two@judge/score?a=1&token=three"}},
                "pods": {"head": {"template": {"spec": {"containers": [{"env": [{"name": "X", "value": "four"}]}]}}}},
                "extraArgs": {"sglang": {"some-token": "five", "page-size": 1, "header": "Bearer sixsix"}},
                "data": {"labelKey": "answer", "train": {"jsonl": "/data/train.jsonl"}},
            }
        }
    )["spec"]
    assert shown["runtime"]["env"]["A"] == HIDDEN
    assert shown["runtime"]["env"]["B"]["valueFrom"]["secretKeyRef"] == {"name": "n", "key": "token"}
    assert shown["reward"]["remote"]["url"] == "https://***@judge/score?a=1&token=***"
    assert shown["data"] == {"labelKey": "answer", "train": {"jsonl": "/data/train.jsonl"}}
    assert shown["extraArgs"]["sglang"] == {"some-token": HIDDEN, "page-size": 1, "header": HIDDEN}
    assert not {"one", "two", "three", "four", "five", "sixsix"} & set(str(shown).replace("'", " ").split())


LONG = (
    *("A" * 100_000, "_" * 100_000, "http://" * 20_000, "http://a?" + "a_" * 50_000, "?" * 100_000, "&a.b" * 30_000),
    *("https://x?" + "token&" * 20_000, "bearer " * 20_000, "-----BEGIN " * 10_000, "a://" + "b" * 100_000),
)


@pytest.mark.parametrize("text", LONG)
def test_a_long_text_is_judged_at_once(text: str):
    with measured() as spent:
        holds_secret(text)
        names_secret(text)
        without_values({"a": text[:10_000]})
        WITH_SECRET.fullmatch(text[:4_096])
    assert spent.seconds < 2


def test_a_running_job_with_a_secret_goes_on():
    text = table()["good"].replace("  reward:\n", "  runtime: {env: {HF_TOKEN: hf_1}}\n  reward:\n")
    assert [problem.field for problem in problems(text)] == ["spec.runtime.env.HF_TOKEN"]
    content = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "x"}}
    found = readable({**content, "spec": safe_load(text)["spec"]})
    assert found is not None
    assert (found.spec.runtime.texts, found.left_out) == ({"HF_TOKEN": "hf_1"}, ())


@pytest.mark.parametrize(("others", "behind", "found"), [(0, 9_000, True), (19, 9_000, True), (999, 150, True)])
def test_of_many_variables_the_begin_of_each_is_looked_at(others: int, behind: int, found: bool):
    variables = {f"OTHER_{number}": "x" for number in range(others)}
    secret = "x " * (behind // 2) + "Bearer abcdefghijkl"
    assert ("HIDES" in secret_names({**variables, "HIDES": secret})) is found


def test_a_megabyte_of_variables_costs_what_a_fifth_of_it_does():
    seen: list[int] = []

    class Text(str):
        def __getitem__(self, part):
            seen.append(len(str(self)[part]))
            return str(self)[part]

    assert list(secret_names({f"NAME_{number}": Text("sk-? a://" * 141) for number in range(1_000)})) == []
    assert sum(seen) <= credentials.MOST_OF_ALL
