"""Holds one thread of another process with ptrace(2) until that ends: hold_thread.py PID NAME."""
import ctypes
import os
import sys

SEIZE, INTERRUPT, ANY_KIND = 0x4206, 0x4207, 0x40000000


def main(pid, name):
    folder = f"/proc/{pid}/task"
    threads = [int(tid) for tid in os.listdir(folder) if open(f"{folder}/{tid}/comm").read().strip() == name]
    libc = ctypes.CDLL(None, use_errno=True)
    for request in (SEIZE, INTERRUPT):
        if libc.ptrace(request, threads[0], 0, 0) != 0:
            sys.exit(f"ptrace: {os.strerror(ctypes.get_errno())}")
    while True:
        _, status = os.waitpid(threads[0], ANY_KIND)
        if not os.WIFSTOPPED(status):
            return
        print("held", flush=True)


main(int(sys.argv[1]), sys.argv[2])
