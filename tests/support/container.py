"""Runs a program in an OCI container, as a container engine would: a test's stand-in for one.

  container.py [--without NAME,…] [--runtime PROGRAM] FOLDER PROFILE PROGRAM [ARGUMENT …]

The image is the program, `setpriv` and their libraries, read-only. User 6379, no capabilities, no new privileges, the
host's network, locked memory and descriptors as tuning/README.md has `docker run` set them. PROFILE is of Docker's form
(tuning/seccomp.json, or an engine's own default): it becomes the runtime's `linux.seccomp` by the rules of
moby/profiles (seccomp_linux.go). FOLDER, empty, takes image and state. Ends by replacing itself with the runtime (runc,
else crun), which passes signals and the exit code on.
"""
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys

USER = 6379
# What the profile's `includes` and `excludes` ask for.
CAPABILITIES = set()
ARCH = {"x86_64": ("amd64", "SCMP_ARCH_X86_64"), "aarch64": ("arm64", "SCMP_ARCH_AARCH64")}[platform.machine()]
KERNEL = tuple(int(part) for part in re.match(r"(\d+)\.(\d+)", platform.release()).groups())


def holds(rule):
    """Whether a rule is for this machine and this container."""
    wanted, unwanted = rule.get("includes") or {}, rule.get("excludes") or {}
    kernel = lambda text: tuple(int(part) for part in text.split(".")[:2])
    if wanted.get("arches") and ARCH[0] not in wanted["arches"] or ARCH[0] in (unwanted.get("arches") or []):
        return False
    if set(wanted.get("caps") or []) - CAPABILITIES or set(unwanted.get("caps") or []) & CAPABILITIES:
        return False
    if wanted.get("minKernel") and KERNEL < kernel(wanted["minKernel"]):
        return False
    return not (unwanted.get("minKernel") and KERNEL >= kernel(unwanted["minKernel"]))


def seccomp(profile, left_out):
    """The runtime's form of a profile."""
    made = {"defaultAction": profile["defaultAction"], "syscalls": []}
    if "defaultErrnoRet" in profile:
        made["defaultErrnoRet"] = profile["defaultErrnoRet"]
    if "archMap" in profile:
        of_arch = [entry for entry in profile["archMap"] if entry["architecture"] == ARCH[1]]
        made["architectures"] = [name for entry in of_arch
                                 for name in [entry["architecture"], *(entry.get("subArchitectures") or [])]]
    else:
        made["architectures"] = profile["architectures"]
    for rule in filter(holds, profile["syscalls"]):
        names = [name for name in rule["names"] if name not in left_out]
        if names:
            kept = {key: rule[key] for key in ("action", "errnoRet", "args") if rule.get(key) is not None}
            made["syscalls"].append({"names": names, **kept})
    return made


def image(root, programs):
    """The programs and what they are linked with, at their own paths."""
    needed = set(programs)
    for program in programs:
        told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        needed |= set(re.findall(r"(/\S+) \(0x", told))
    for path in needed:
        there = root + path
        os.makedirs(os.path.dirname(there), exist_ok=True)
        shutil.copy(path, there)
    for folder in ("proc", "dev", "sys"):
        os.makedirs(os.path.join(root, folder), exist_ok=True)


def specification(arguments, filters):
    def limit(kind, value):
        # Who may not raise its own limit (no CAP_SYS_RESOURCE) gives what it has.
        hard = resource.getrlimit(getattr(resource, kind))[1] % 2**64
        return {"type": kind, "soft": min(value, hard), "hard": min(value, hard)}
    mount = lambda at, kind, *options: {"destination": at, "type": kind, "source": kind, "options": list(options)}
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": USER, "gid": USER},
            "args": arguments,
            "env": ["PATH=/usr/bin", *(f"{name}={value}" for name, value in os.environ.items() if "RINGWAY_" in name)],
            "cwd": "/",
            "capabilities": {name: [] for name in ("bounding", "effective", "inheritable", "permitted", "ambient")},
            "rlimits": [limit("RLIMIT_NOFILE", 65536), limit("RLIMIT_MEMLOCK", 2**64 - 1)],
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": True},
        "mounts": [
            mount("/proc", "proc", "nosuid", "noexec", "nodev"),
            mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755"),
            mount("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro"),
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
            "seccomp": filters,
        },
    }


def main():
    words, without, runtime = sys.argv[1:], set(), shutil.which("runc") or shutil.which("crun")
    while words and words[0].startswith("--"):
        if words[0] == "--without":
            without = set(words[1].split(","))
        elif words[0] == "--runtime":
            runtime = words[1]
        else:
            sys.exit(f"container.py: there is no {words[0]}")
        words = words[2:]
    if runtime is None:
        sys.exit("container.py: neither runc nor crun is here (Debian: runc)")
    folder, profile, *arguments = words
    with open(profile) as file:
        filters = seccomp(json.load(file), without)
    arguments[0] = shutil.which(arguments[0])
    # The tests start all programs by `setpriv … -- PROGRAM`, so that none outlives its test.
    programs = [os.path.abspath(word) for word in arguments if os.access(word, os.X_OK) and os.path.isfile(word)]
    image(os.path.join(folder, "rootfs"), programs)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(specification(arguments, filters), file)
    words = [runtime, "--root", os.path.join(folder, "state")]
    # Of all containers of this host: the runtime names a control group so.
    name = re.sub(r"[^A-Za-z0-9]+", "-", os.path.abspath(folder)).strip("-")
    os.execv(runtime, [*words, "run", "--bundle", folder, name])


main()
