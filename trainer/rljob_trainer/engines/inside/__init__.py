"""What runs inside SGLang's processes: plugins, which SGLang finds by entry points in directories on PYTHONPATH.

    any/    on all machines
    cpu/    on machines without GPUs
    gpu/    on GPUs

They import SGLang and torch. They import no module of rljob, and no module of rljob imports them.
"""
