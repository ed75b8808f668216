#!/usr/bin/env bash
# Takes folders of what `make gpu-bundle` made, on a machine with GPUs and without a network; as root. Folder 1 comes first.
#
#     unpack.sh FOLDER...
#
# A part is unpacked into /opt/rljob as soon as all its chunks are there. Programs and libraries that the machine lacks
# are added to its /usr: nothing that it has is replaced. PYTHON: the Python that has PyTorch, by default python3.
set -euo pipefail
root=/opt/rljob
chunks=$root/chunks
python=${PYTHON:-python3}
say() { printf '%6.1f s  %s\n' "$(($(date +%s%N) / 1000000 - began))e-3" "$*"; }
began=$(($(date +%s%N) / 1000000))
mkdir -p "$chunks" && chmod 755 "$root"

add_system() {
  for directory in usr etc; do cp -an "$root/system/programs/$directory/." "/$directory/"; done
  ldconfig
  for library in "$root"/system/libraries/*; do
    ldconfig -p | grep -qF "	$(basename "$library") (" || { cp "$library" /usr/local/lib/ && echo "          added $(basename "$library")"; }
  done
  ldconfig
  # Where the kernel lacks a part of nftables, iptables has its older form.
  rule="-t nat -A POSTROUTING -j MASQUERADE --random-fully"
  if ! unshare --net iptables $rule 2> /dev/null && unshare --net xtables-legacy-multi iptables $rule; then
    for name in iptables{,-save,-restore} ip6tables{,-save,-restore}; do ln -sf xtables-legacy-multi "/usr/sbin/$name"; done
    echo "          iptables is $(iptables -V)"
  fi
  [ -e /dev/kmsg ] || mknod /dev/kmsg c 1 11  # kubelets read the kernel's messages
  for name in containerd ctr runc iptables ipset conntrack ip nsenter openssl wget; do
    program=$(command -v "$name") || { echo "error: no $name"; exit 1; }
    if ldd "$program" 2> /dev/null | grep 'not found'; then echo "error: $program lacks libraries"; exit 1; fi
  done
  mkdir -p "$root/bin" && cp -r "$chunks/zstd" "$root/bin/"
}

# An environment with the carried packages before those that the machine's Python has.
add_packages() {
  rm -rf "$root/venv"
  "$python" - "$root" <<'END'
import pathlib, site, sys
root = pathlib.Path(sys.argv[1])
own = root / f"venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
own.mkdir(parents=True)
(root / "venv/bin").mkdir()
real = pathlib.Path(sys.executable).resolve()
for name in ("python", "python3"):
    (root / "venv/bin" / name).symlink_to(real)
(root / "venv/pyvenv.cfg").write_text(f"home = {real.parent}\ninclude-system-site-packages = false\n")
paths = [*(str(root / "code" / name) for name in ("crds", "operator", "trainer")), str(root / "packages"), *site.getsitepackages()]
(own / "rljob.pth").write_text(f"import site; list(map(site.addsitedir, {paths}))\n")
for name, module in {"ray": "ray.scripts.scripts", "rljob": "rljob_cli.__main__"}.items():
    script = root / "venv/bin" / name
    script.write_text(f"#!{root}/venv/bin/python\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
    script.chmod(0o755)
END
  # Containers cannot write bytecode. Some packages carry files for other versions of Python.
  "$root/venv/bin/python" -W ignore -m compileall -qq -j 0 "$root/packages" || true
  chmod -R go+rX "$root/venv" "$root/packages"
}

for folder; do
  cp -r "$folder/." "$chunks/"
done
for part in system kubernetes packages; do
  if [ -e "$root/$part.done" ]; then continue; fi
  if (cd "$chunks" && grep "  $part\." contents | sha256sum --check --status 2> /dev/null); then
    cat "$chunks/$part".* | LD_LIBRARY_PATH=$chunks/zstd "$chunks/zstd/zstd" -dcq --long=27 | tar x -C "$root"
    rm "$chunks/$part".*
    case $part in
      system) add_system ;;
      packages) add_packages ;;
    esac
    touch "$root/$part.done"
    say "unpacked $part"
  else
    say "$part: not all chunks are there"
  fi
done
