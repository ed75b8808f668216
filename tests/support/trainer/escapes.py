"""What hostile code may try from inside of a sandbox. Each attempt raises an error if it does not succeed."""

import textwrap
from collections.abc import Mapping

ESCAPES = {
    # environment and memory of others
    "own environment": "os.environ['RLJOB_SECRET']",
    "parent's environment": "open(f'/proc/{os.getppid()}/environ').read()",
    "parent's memory": "open(f'/proc/{os.getppid()}/mem', 'rb')",
    "parent's descriptors": "os.listdir(f'/proc/{os.getppid()}/fd')",
    "parent's root": "os.listdir(f'/proc/{os.getppid()}/root')",
    "environment of any process": "[open(f'/proc/{n}/environ').read() for n in numbers() if n != os.getpid()]",
    "tracing the parent": "syscall(101, 16, os.getppid(), 0, 0)",
    "reading the parent's memory": "syscall(310, os.getppid(), 0, 0, 0, 0, 1)",
    "a descriptor of the parent": "syscall(438, syscall(434, os.getppid(), 0), 3, 0)",
    "inherited descriptors": "assert len(os.listdir('/proc/self/fd')) > 4, 'only its own'",
    # processes
    "the machine's processes": "assert len(numbers()) > 4, 'only its own'",
    "a signal to the driver": "os.kill(DRIVER, 9)",
    "killing its first process": "os.kill(1, 9); os.sched_yield(); os.kill(1, 0); raise OSError('it lives')",
    "raising its priority": "os.nice(-5)",
    "a higher limit": "resource.setrlimit(resource.RLIMIT_NPROC, (10**4, 10**4))",
    "a fork bomb": "bomb()",
    "threads without end": "threads()",
    # files
    "the run's files": "open(RUN + '/secret.txt').read()",
    "the run's directory": "assert os.listdir(RUN) != ['handbook_tools.py'], 'only the tool of the user'",
    "home of the user": "os.listdir(HOME + '/.cache')",
    "passwords": "open('/etc/shadow').read()",
    "service account": "os.listdir('/var/run/secrets')",
    "a link to the run": "os.symlink(RUN, 'there'); open('there/secret.txt').read()",
    "a hard link to a system file": "os.link('/usr/bin/env', '/usr/bin/env2')",
    "the way up": "os.chdir('/'); [os.chdir('..') for _ in range(50)]; open('etc/shadow').read()",
    "the old root": "os.listdir('/old')",
    "another root": "os.mkdir('r'); os.chroot('r')",
    "writing to the system": "open('/usr/escaped', 'w')",
    "writing to Python": "open(os.path.join(sys.prefix, 'escaped'), 'w')",
    "writing to the root": "open('/escaped', 'w')",
    "writing to /etc": "open('/etc/escaped', 'w')",
    "a disk full of one file": "open('x', 'wb').write(bytes(2**27))",
    "a disk full of many files": "fill()",
    "files without end": "[open(f'x{i}', 'w').close() for i in range(10**5)]",
    # privileges
    "becoming root": "os.setuid(0)",
    "another group": "os.setgroups([0])",
    "a new user namespace": "syscall(272, 0x10000000)",
    "a mount": "syscall(165, 0, 0, 0, 0, 0)",
    "remounting": "libc.mount(None, b'/', None, 32 | 4096, None) == 0 or fail()",
    "a device": "os.mknod('disk', 0o60600, os.makedev(8, 0)); open('disk', 'rb')",
    "the kernel's messages": "syscall(103, 3, 0, 0)",
    "the machine's name": "socket.sethostname('escaped')",
    "kernel settings": "open('/proc/sys/kernel/core_pattern', 'w')",
    "memory of the kernel": "open('/proc/kcore', 'rb').read(1)[0]",
    # network and IPC
    "localhost": "socket.create_connection(('127.0.0.1', PORT), 2)",
    "the network": "socket.create_connection(('10.0.0.1', 53), 2)",
    "names": "socket.getaddrinfo('example.com', 80)",
    "an abstract socket": "socket.socket(socket.AF_UNIX).connect(ABSTRACT)",
    "a socket of the run": "socket.socket(socket.AF_UNIX).connect(RUN + '/socket')",
    "raw packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "shared memory of the machine": "open('/dev/shm/' + SHARED, 'rb')",
}
IN_PODS = {
    # The kernel counts the processes of a user on the whole node, so a pod sets no such limit.
    **{name: escape for name, escape in ESCAPES.items() if name != "a higher limit"},
    # The tool has the user of the server, which is the first process.
    "the server's environment": "open('/proc/1/environ').read()",
    "the server's memory": "open('/proc/1/mem', 'rb')",
    "the server's descriptors": "os.listdir('/proc/1/fd')",
    "ending the server": "[os.kill(1, n) for n in (2, 15, 9)]; os.sched_yield(); os.kill(1, 0); raise OSError('lives')",
    "starving the server of descriptors": "resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))",
    "starving the server of memory": "resource.prlimit(1, resource.RLIMIT_AS, (0, 0))",
    "taking the server's processors": "os.sched_setaffinity(1, {0})",
    "slowing the server": "os.setpriority(os.PRIO_PROCESS, 1, 19)",
    "a socket of the network": "socket.socket(socket.AF_INET)",
    "a socket of the new network": "socket.socket(socket.AF_INET6)",
    "a socket to the kernel": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "a ring of requests": "syscall(425, 8, 0)",
    "a segment that outlasts the call": "syscall(29, 4711, 4096, 0o1600)",
    "memory that nobody counts": "os.memfd_create('x')",
    "a namespace by clone": "syscall(56, 0x10000000 | 17, 0, 0, 0, 0)",
    "calls by other numbers": "syscall(0x40000000 | 41, 2, 1, 0)",
}
"""in a pod of tools"""
HELPERS = """
import ctypes, os, resource, socket, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
def fail(): raise OSError(ctypes.get_errno(), 'refused')
def syscall(*arguments):
    result = libc.syscall(*arguments)
    return fail() if result < 0 else result
def numbers(): return [int(name) for name in os.listdir('/proc') if name.isdigit()]
def bomb():
    while True:
        if os.fork() == 0:
            import time
            time.sleep(60)
            os._exit(0)
def fill():
    try:
        for i in range(64): open(f'x{i}', 'wb').write(bytes(2**22))
    finally:
        for name in os.listdir(): os.unlink(name)
def threads():
    stop = threading.Event()
    try:
        for _ in range(10**4): threading.Thread(target=stop.wait).start()
    finally: stop.set()
"""


def attempt(escape: str, machine: Mapping[str, object]) -> str:
    """Return code that prints ESCAPED, or KEPT and why; `machine` gives names to what it shall not reach."""
    return (
        "\n".join(f"{name} = {value!r}" for name, value in machine.items())
        + HELPERS
        + f"try:\n{textwrap.indent(escape, '    ')}\n    print('ESCAPED')\n"
        "except (OSError, LookupError, ValueError, AssertionError, RuntimeError, MemoryError) as error:\n"
        "    print('KEPT', error)\n"
    )
