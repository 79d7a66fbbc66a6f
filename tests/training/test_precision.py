"""Names of precisions, and whether this machine computes in them."""

from typing import Any

import pytest

from tfdist.training.precision import (
    PRECISIONS,
    describe_emulation,
    find_precision,
    processor_features,
)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        *((name, name) for name in PRECISIONS),
        *(("32.32", "float32"), ("16.32", "mixed_float16"), ("16.16", "float16")),
    ],
)
def test_a_precision_has_its_own_name_and_the_originals(name: str, found: str) -> None:
    assert find_precision(name).name == found


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mixed_fp16", r"^precision must be one of float32, mixed_float16, .*'mixed_float16'\?$"),
        ("fp64", r"\(or 32.32, 16.32, 16.16\), got 'fp64'"),
        (16, r"got 16\.$"),
        (None, r"got None\.$"),
        ("32.16", r'precision "32.16" would compute in float32 .* Use "32.32", "16.32" or "16.16"'),
    ],
)
def test_other_names_are_refused_with_those_that_are_allowed(name: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_precision(name)


@pytest.mark.parametrize(
    ("name", "kind", "features", "is_emulated"),
    [
        ("mixed_float16", "CPU", {"avx2", "avx512f"}, True),
        ("float16", "CPU", {"avx512_fp16"}, True),  # Of no use to TensorFlow's kernels.
        ("bfloat16", "CPU", {"avx512_fp16"}, True),
        ("mixed_bfloat16", "CPU", {"amx_bf16"}, False),
        ("mixed_bfloat16", "CPU", {"asimd", "bf16"}, False),
        ("mixed_float16", "GPU", {"avx2"}, False),
        ("mixed_bfloat16", "CPU", set(), False),  # Not known.
        ("float32", "CPU", {"avx2"}, False),
    ],
)
def test_a_half_that_a_cpu_does_not_have_is_emulated(
    name: str, kind: str, features: set[str], is_emulated: bool
) -> None:
    line = describe_emulation(PRECISIONS[name], kind, features)
    assert (line is not None) == is_emulated
    if line is not None:
        assert line.startswith(f"{PRECISIONS[name].compute.name} is emulated on this CPU: ")


@pytest.mark.parametrize("key", ["flags", "Features"])
def test_the_features_of_the_processor_are_those_that_linux_lists(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    text = f"processor : 0\n{key}\t\t: fpu avx2\n\nprocessor : 1\n{key}\t\t: fpu avx2\n"
    monkeypatch.setattr("tfdist.training.precision._cpuinfo", lambda: text)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    assert processor_features() == {"fpu", "avx2"}
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert processor_features() == frozenset()
