#!/usr/bin/env bash
# Builds what a release uploads, into dist/, and tries it.
#
#   scripts/release.sh [PYTHON ...]      such as 3.11 3.13; by default 3.10 to 3.13
#
# 1. sdist and wheel, which `twine check` reads.
# 2. In a fresh environment of each Python, the wheel, and from it the README's two programs: alone, and with
#    `tfdist run --num-instances 2`. A Python that is not here is named, and the others go on.
# 3. pyproject.toml has no placeholder any more.
#
# It downloads TensorFlow, once for each Python. The last lines are the results. Exit code 0 if all is ready for
# `twine upload dist/*`, else 1.
set -euo pipefail
root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
readonly root
# shellcheck source=scripts/find_python.sh
. "$root/scripts/find_python.sh"
[ $# -gt 0 ] || set -- 3.10 3.11 3.12 3.13
folder="$(mktemp -d "${TMPDIR:-/tmp}/tfdist-release.XXXXXX")"
readonly folder
trap 'rm -rf -- "$folder"' EXIT
results=()
is_ready=yes

# Installs the wheel for one Python, and runs the README's programs outside of the repository.
try_wheel() {
    local environment="$folder/$1"
    "$2" -m venv "$environment" && "$environment/bin/pip" install --quiet "$root"/dist/*.whl &&
        cd "$folder/programs" && PATH="$environment/bin:$PATH" && unset PYTHONPATH &&
        tfdist --version && tfdist doctor --no-self-test >/dev/null &&
        python smallest.py && tfdist run --num-instances 2 -- smallest.py &&
        python smallest_fit.py && tfdist run --num-instances 2 -- smallest_fit.py
}

cd "$root"
python3 -m venv "$folder/tools"
"$folder/tools/bin/pip" install --quiet build twine
rm -rf dist
"$folder/tools/bin/python" -m build --outdir dist .
"$folder/tools/bin/twine" check --strict dist/*

mkdir "$folder/programs"
python3 - README.md "$folder/programs" <<'PYTHON'
import pathlib, re, sys
page, folder = map(pathlib.Path, sys.argv[1:])
programs = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
for name, program in zip(("smallest.py", "smallest_fit.py"), programs):
    (folder / name).write_text(program)
PYTHON

for version in "$@"; do
    if ! python="$(find_python "$version")"; then
        results+=("Python $version: not here, not tried")
    elif (try_wheel "$version" "$python") >"$folder/log" 2>&1; then
        results+=("Python $version: installed, and README's programs run")
    else
        tail -n 30 "$folder/log" >&2
        results+=("Python $version: FAILED, see above")
        is_ready=no
    fi
    rm -rf -- "${folder:?}/$version"
done
if grep -q "example.invalid" pyproject.toml; then
    results+=("pyproject.toml: fill in authors and [project.urls]: they are placeholders")
    is_ready=no
fi
printf '%s\n' "${results[@]}"
[ "$is_ready" = yes ]
