"""Runs a program under the system call filter of a profile, as a container runtime would: a test's loader.

  seccomp.py [--without NAME,…] PROFILE PROGRAM [ARGUMENT …]

Takes what tuning/seccomp.json has: one action for all that is not named, names that are allowed, no conditions. On
x86_64 and aarch64. Not for production: a runtime's own loader is libseccomp.
"""
import ctypes
import json
import os
import platform
import re
import struct
import subprocess
import sys

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06


def numbers():
    """Names and numbers of this machine's system calls, as the C headers have them."""
    told = subprocess.run(["cc", "-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"], check=True,
                          capture_output=True, text=True).stdout
    return {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)$", told, re.M)}


def program_of(profile, left_out):
    """The filter as BPF: foreign architectures die, allowed numbers pass, the rest gets the profile's error."""
    if profile["defaultAction"] != "SCMP_ACT_ERRNO":
        sys.exit("seccomp.py: only SCMP_ACT_ERRNO by default is known")
    known, allowed = numbers(), set()
    for rule in profile["syscalls"]:
        if rule["action"] != "SCMP_ACT_ALLOW" or rule.get("args"):
            sys.exit("seccomp.py: only plain SCMP_ACT_ALLOW is known")
        allowed |= {known[name] for name in rule["names"] if name in known and name not in left_out}
    # seccomp_data: nr at 0, arch at 4.
    code = [(LOAD, 0, 0, 4), (JUMP_EQUAL, 1, 0, AUDIT_ARCH[platform.machine()]), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    for number in sorted(allowed):
        code += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    return code + [(RETURN, 0, 0, ERRNO | profile.get("defaultErrnoRet", 1))]


def load(code):
    packed = b"".join(struct.pack("=HBBI", *line) for line in code)
    held = ctypes.create_string_buffer(packed, len(packed))
    fprog = struct.pack("@HP", len(code), ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
                      (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(fprog), 0, 0)):
        if libc.prctl(*arguments):
            sys.exit(f"seccomp.py: prctl: {os.strerror(ctypes.get_errno())}")


arguments = sys.argv[1:]
without = set()
if arguments and arguments[0] == "--without":
    without = set(arguments[1].split(","))
    arguments = arguments[2:]
with open(arguments[0]) as file:
    filter_code = program_of(json.load(file), without)
load(filter_code)
os.execvp(arguments[1], arguments[1:])
