"""What hostile code may try from inside of a sandbox. Each attempt raises an error if it does not succeed."""

import ctypes
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
    "a socket of any other family": "others()",
    "a socket of a virtual machine": "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
    "a pair of another family": "syscall(53, 30, 1, 0, (ctypes.c_int * 2)())",
    "a longer queue of a socket": "socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)",
    # keys
    "a key of the user": "text = ctypes.create_string_buffer(64); syscall(250, 11, KEY, text, 64, 0)",
    "a key found by its name": "syscall(250, 10, -3, b'user', b'rljob-test', 0)",
    "a key of its own": "syscall(248, b'user', b'x', b'y', 1, -3)",
    "a key from outside": "syscall(249, b'user', b'rljob-test', 0, -3)",
    # memory
    "shared memory": "touch(mmap.mmap(-1, 2**30))",
    "a little shared memory, which it need not map": "mmap.mmap(-1, 4096)",
    "shared memory of a device": "mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096)",
    "memory of System V": "syscall(29, 0, 600 << 20, 0o1600)",
    "files in memory": "[os.write(os.memfd_create('x'), bytes(2**20)) for _ in range(60)]",
    "secret memory": "syscall(447, 0)",
    "memory of many processes": "in_processes(6, lambda: touch(mmap.mmap(-1, 180 << 20, mmap.MAP_PRIVATE)))",
    "tables of pages that nobody wrote to": "touch(mmap.mmap(-1, 2**38, mmap.MAP_PRIVATE, mmap.PROT_READ), 2**21)",
    "memory in queues of sockets": "in_processes(12, lambda: [fill_queues() for _ in range(110)])",
    "huge pages": "mmap.mmap(-1, 2**21, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)[0]",
    "to be the last that ends when memory is short": "open('/proc/self/oom_score_adj', 'w').write('0')",
    "the same by the older name": "open('/proc/self/oom_adj', 'w').write('-17')",
    # the kernel
    "rings of requests": "syscall(425, 8, (ctypes.c_uint32 * 30)())",
    "registering with a ring": "syscall(427, 0, 0, 0, 0)",
    "a namespace by clone3": "syscall(435, (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17), 88)",
    "another time": "syscall(272, 0x80)",
    "a namespace of the first process": "syscall(308, os.pidfd_open(1), 0x40000000)",
    "a copy of the mounts": "syscall(428, -100, b'/', 1)",
    "a new file system": "syscall(430, b'tmpfs', 0)",
    "writable mounts": "syscall(442, -100, b'/usr', 0, (ctypes.c_uint64 * 4)(0, 1, 0, 0), 32)",
    "moving mounts": "syscall(429, 3, b'', -100, b'/tmp', 4)",
    "files by their numbers": "syscall(304, -100, (ctypes.c_uint32 * 4)(8, 1, 2, 0), 0)",
    "watching files of others": "syscall(300, 0, 0)",
    "programs in the kernel": "syscall(321, 0, (ctypes.c_uint32 * 20)(1, 4, 4, 1), 80)",
    "measuring the machine": "syscall(298, (ctypes.c_uint32 * 32)(1, 128), 0, -1, -1, 0)",
    "page faults": "syscall(323, 0)",
    "judging the calls of others": "syscall(317, 1, 8, (ctypes.c_uint64 * 2)())",
    "being traced": "syscall(101, 0, 0, 0, 0)",
    "ending the memory of a process": "syscall(448, os.pidfd_open(os.getppid()), 0)",
    "comparing itself with the first process": "syscall(312, 1, os.getpid(), 1, 0, 0)",
    "another personality": "syscall(135, 0x0400000)",
    "its own segments": "syscall(154, 0, ctypes.create_string_buffer(64), 64)",
    "a module of the kernel": "syscall(313, 0, b'', 0)",
    "swapping": "syscall(167, b'/tmp/x', 0)",
    "another clock": "syscall(305, 0, (ctypes.c_uint64 * 26)(1))",
    "first place at the processor": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
    "first place at the disk": "syscall(251, 1, 0, 1 << 13)",
    "queues of messages": "syscall(68, 0, 0o1600)",
    "a queue with a name": "syscall(240, b'x', 0o102, 0o600, 0)",
    "semaphores of System V": "syscall(64, 0, 1, 0o1600)",
    "calls of 32 bits": "old_call()",
    "calls that a newer kernel has: mounts": "syscall(457, (ctypes.c_uint64 * 4)(24, 1, 1), 0, 0, 0)",
    "calls that no kernel has yet": "syscall(600)",
    "typing into a terminal": "fcntl.ioctl(0, 0x5412, b'x')",
    # calls whose arguments ask for more than programs need
    "a message out of band": "one, other = socket.socketpair(); one.send(b'x', socket.MSG_OOB); other.recv(1)",
    "the same by the other call": "one, other = socket.socketpair(); one.sendmsg([b'x'], [], socket.MSG_OOB)",
    "a filter of packets": "one, other = socket.socketpair(); one.setsockopt(1, 26, packet_filter())",
    "a pipe for the kernel's notes": "syscall(293, (ctypes.c_int * 2)(), 0x80)",
    "pages shared with those of others": "mmap.mmap(-1, 4096, mmap.MAP_PRIVATE).madvise(12)",
    "the same for all its pages": "libc.prctl(67, 1, 0, 0, 0) == 0 or fail()",
    "a page that the machine takes as broken": "mmap.mmap(-1, 4096, mmap.MAP_PRIVATE).madvise(100)",
    "the page at address zero": "mapped_at_zero()",
    "memory that the kernel may drop": "touch(mmap.mmap(-1, 2**30, flags=0x08))",
    "namespaces behind the high half of flags": "syscall(56, ctypes.c_long(1 << 40 | 0x10000000 | 17), 0, 0, 0, 0)",
    "a call behind the high half of a number": "syscall(ctypes.c_long(1 << 32 | 101), 16, os.getppid(), 0, 0)",
    "a program of 32 bits": "run_32_bits()",
    "a right that its programs keep": "libc.prctl(47, 2, 21, 0, 0) == 0 or fail()",
    "all rights": "syscall(126, (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6))",
    "root's programs with root's rights": "libc.prctl(28, 0x2F, 0, 0, 0) == 0 or fail()",
    "another program's name for itself": "libc.prctl(35, 13, os.open('/usr/bin/env', 0), 0, 0) == 0 or fail()",
    "a processor with others": "libc.prctl(62, 2, 1, 1, 0) == 0 or fail()",
    # processes, by other ways than the usual ones
    "writing the parent's memory": "syscall(311, os.getppid(), 0, 0, 0, 0, 0)",
    "advice for the parent's memory": "syscall(440, os.pidfd_open(os.getppid()), 0, 0, 21, 0)",
    "moving the parent's memory": "syscall(279, os.getppid(), 0, 0, 0, 0, 0)",
    "a signal to the driver with words of its own": "syscall(129, DRIVER, 9, ctypes.create_string_buffer(128))",
    "a signal by way of a descriptor": "fcntl.fcntl(os.pipe()[0], 8, DRIVER)",
    "joining the parent's group": "os.setpgid(0, os.getpgid(os.getppid()))",
    "the parent's locks": "syscall(274, os.getppid(), (ctypes.c_long * 1)(), (ctypes.c_long * 1)())",
    "another process's number in a message": (
        "socket.socketpair()[0].sendmsg([b'x'], [(1, 2, (ctypes.c_int * 3)(os.getppid(), 0, 0))])"
    ),
    "a program that has the rights of root": (
        "assert subprocess.run(['/bin/su', '-c', 'true'], stdin=-3, stderr=-3).returncode == 0, 'refused'"
    ),
    "a dump of its memory": "resource.setrlimit(resource.RLIMIT_CORE, (2**20, 2**20))",
    "more descriptors": "resource.setrlimit(resource.RLIMIT_NOFILE, (10**5, 10**5))",
    "larger files": "resource.setrlimit(resource.RLIMIT_FSIZE, (2**40, 2**40))",
    "a directory left open from outside": "[os.fchdir(n) for n in range(256) if is_directory(n)][0]",
    "a socket left open from outside": "[socket.socket(fileno=n) for n in range(256) if is_socket(n)][0]",
    "keys for its parent": "syscall(250, 18, 0, 0, 0, 0)",
    # files, devices and the kernel's own
    "watching which programs run": "syscall(254, syscall(294, 0), b'/usr/bin', 0x20)",
    "watching a directory by a signal": "fcntl.fcntl(os.open('/usr/bin', 0), fcntl.F_NOTIFY, 1)",
    "a file that nobody can delete": (
        "fcntl.ioctl(os.open('x', os.O_CREAT | os.O_RDWR), 0x40086602, (ctypes.c_long * 1)(0x10))"
    ),
    "the rights of a file": "os.chmod('/usr/bin/env', 0o4777)",
    "the time of a file": "os.utime('/usr/bin/env')",
    "rights in an attribute of a file": (
        "open('x', 'w').close(); os.setxattr('x', 'security.capability', bytes([1, 0, 0, 2]) + bytes([255] * 16))"
    ),
    "memory in attributes of files": (
        "open('x', 'w').close(); [os.setxattr('x', f'user.{i}', bytes(2**16)) for i in range(10**4)]"
    ),
    "directories without end": "[os.mkdir(f'x{i}') for i in range(10**5)]",
    "a namespace of its parent": "os.open(f'/proc/{os.getppid()}/ns/net', 0)",
    "the user outside": "open('/proc/self/uid_map', 'w').write('0 0 1')",
    "the kernel's switch": "open('/proc/sysrq-trigger', 'w').write('h')",
    "the machine's connections": "open('/proc/self/net/tcp').read()",
    "the place among the machine's groups": "open('/proc/self/cgroup').read()",
    "page faults by a device": "os.open('/dev/userfaultfd', os.O_RDWR)",
    "a virtual machine": "os.open('/dev/kvm', os.O_RDWR)",
    "a terminal of its own": "os.openpty()",
    "the kernel's messages by a device": "os.open('/dev/kmsg', os.O_RDONLY)",
    "file systems of programs": "os.open('/dev/fuse', os.O_RDWR)",
    "rights over ports of the machine": "syscall(172, 3)",
    "a new root by turning": "syscall(155, b'/tmp', b'/tmp')",
    "unmounting": "syscall(166, b'/tmp', 2)",
    "a file's number": "syscall(303, -100, b'/usr/bin/env', ctypes.create_string_buffer(160), (ctypes.c_int * 1)(), 0)",
    # names of the machine's paths
    "where its files lie": "open('/proc/self/mountinfo').read()",
    "where they lie, by the older list": "open('/proc/thread-self/mounts').read()",
    "where they lie, by the statistics": "open('/proc/self/mountstats').read()",
    "where its parent's files lie": "open(f'/proc/{os.getppid()}/mountinfo').read()",
    "where the first process's files lie": "open('/proc/1/mounts').read()",
    "its own memory's map": "open('/proc/self/maps').read()",
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
import ctypes, fcntl, mmap, os, resource, socket, stat, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def fail(): raise OSError(ctypes.get_errno(), 'refused')
def syscall(*arguments):
    result = libc.syscall(*arguments)
    return fail() if result < 0 else result
def numbers(): return [int(name) for name in os.listdir('/proc') if name.isdigit()]
def bomb():
    while True:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
def fill():
    try:
        for i in range(64): open(f'x{i}', 'wb').write(bytes(2**22))
    finally:
        for name in os.listdir(): os.unlink(name)
def touch(memory, step=4096):
    for i in range(0, len(memory), step):
        if step == 4096: memory[i] = 1
        else: memory[i]
def in_processes(num, work):
    for _ in range(num):
        if os.fork() == 0:
            kept = work()
            time.sleep(5)
            os._exit(0)
    time.sleep(5)
def fill_queues():
    pair = socket.socketpair()
    for each in pair:
        each.setblocking(False)
        try:
            while True: each.send(bytes(2**15))
        except BlockingIOError: pass
    return pair
def others():
    made = []
    for family, kind in [(f, k) for f in range(2, 50) for k in (1, 2, 3, 5)]:
        try: made.append(socket.socket(family, kind))
        except OSError: pass
    assert made, 'none'
def old_call():
    code = 'import ctypes, mmap; m = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE, 7); '
    code += 'm.write(bytes.fromhex("b814000000cd80c3")); '
    code += 'ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()'
    assert subprocess.run([sys.executable, '-c', code]).returncode == 0, 'killed'
def mapped_at_zero():
    libc.mmap.restype = ctypes.c_void_p
    assert libc.mmap(None, 4096, 3, 0x32, -1, 0) != 2**64 - 1, 'refused'
def packet_filter():
    global kept
    kept = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 65535))
    return struct.pack('H6xQ', 1, ctypes.addressof(kept))
def is_directory(number):
    try: return stat.S_ISDIR(os.fstat(number).st_mode)
    except OSError: return False
def is_socket(number):
    try: return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError: return False
def run_32_bits():
    code = bytes.fromhex('b801000000 31db cd80')
    sizes = (0x8054, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    header = struct.pack('<4s5B7xHHIIIIIHHHHHH', b'\\x7fELF', 1, 1, 1, 0, 0, 2, 3, 1, *sizes)
    program = struct.pack('<8I', 1, 0, 0x8000, 0x8000, 84 + len(code), 84 + len(code), 5, 4096)
    open('x32', 'wb').write(header + program + code)
    os.chmod('x32', 0o700)
    assert subprocess.run(['./x32']).returncode == 0, 'killed'
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


def key_of_the_session() -> int:
    """Put a key into a new session keyring, as Kerberos does, and return its number; -1: no keys here."""
    libc = ctypes.CDLL(None)
    libc.syscall(250, 1, None)
    return int(libc.syscall(248, b"user", b"rljob-test", b"ticket", 6, -3))


LIMITS = ("processes and threads were started", "of memory were needed")


def held(said: str) -> bool:
    """Return whether an attempt has failed, or met a limit."""
    return said.startswith("KEPT") or (said.startswith("Error: more than ") and said.endswith(LIMITS))
