"""What Windows and macOS lack of what Python has on Linux."""

from __future__ import annotations

import re

_MODULES = {
    "win32": r"fcntl|resource|pwd|grp|termios|tty|pty|syslog|posix|crypt|nis|spwd|curses|readline"
    r"|_posix\w+",
    "darwin": "spwd",
}

_NAMES = {
    "win32": {
        "os": r"fork(pty)?|get(e?[ug]id|pgrp|pgid|sid|groups|grouplist|res[ug]id|priority|loadavg"
        r"|xattr|envb|_blocking)|set(?!_inheritable).*|killpg|wait([34]|id)?|W[A-Z]{2,}|P_(ALL|PID.*)"
        r"|register_at_fork|uname|sysconf|[f]?pathconf|confstr|mkfifo|mknod|nice|[lf]?ch(own|root)"
        r"|[lf]chmod|openpty|ttyname|tc[gs]etpgrp|ctermid|p?(read|write)v|pread|pwrite|sendfile"
        r"|O_(NONBLOCK|NOFOLLOW|CLOEXEC|DIRECTORY|D?SYNC|NOCTTY|ASYNC|PATH|TMPFILE)|lockf|sync|abc"
        r"|f?statvfs|initgroups|major|minor|makedev|environb|fwalk|copy_file_range|splice|pipe2"
        r"|(list|remove)xattr|unshare|(RTLD|SCHED|PRIO|EX|POSIX|GRND|EFD|TFD|CLONE|MFD|XATTR|SPLICE"
        r"|ST)_.*|(sched|posix|eventfd|timerfd|pidfd|memfd).*|F_(LOCK|TEST|U?LOCK|TLOCK)",
        "signal": r"SIG(?!ABRT|FPE|ILL|INT|SEGV|TERM|_DFL|_IGN|BREAK).*|sig(pending|timedwait"
        r"|wait.*|interrupt)|pthread_.*|[sg]etitimer|ITIMER_.*|alarm|pause|pidfd_.*",
        "select": "e?poll|PIPE_BUF|kqueue",
        "socket": "AF_UNIX",
        "time": "tzset|clock_[gs]ettime(_ns)?|pthread_.*|CLOCK_.*",
        "sys": "abiflags|[gs]etdlopenflags",
        "mmap": "(MAP|PROT|MADV)_.*",
        "locale": "nl_langinfo",
    },
    "darwin": {
        "os": "pipe2|(memfd|eventfd|pidfd|timerfd).*|copy_file_range|splice"
        "|(get|set|list|remove)xattr|O_(TMPFILE|PATH)|sched_[gs]etaffinity|unshare|[gs]etres[ug]id",
        "signal": "SIG(RTMIN|RTMAX|POLL|PWR|STKFLT)|sigtimedwait|sigwaitinfo|pidfd_.*",
        "select": "epoll",
        "fcntl": "F_[GS]ETPIPE_SZ",
        "time": "pthread_.*",
    },
}
PLATFORMS = (*_NAMES,)
_COMPILED = {
    platform: {module: re.compile(pattern) for module, pattern in modules.items()}
    for platform, modules in _NAMES.items()
}


def lacks(platform: str, module: str, name: str) -> bool:
    """Whether `module` has no `name` on that platform."""
    known = _COMPILED[platform].get(module)
    return known is not None and known.fullmatch(name) is not None


def lacks_module(platform: str, name: str) -> bool:
    """Whether that platform has no module `name`."""
    return re.fullmatch(_MODULES[platform], name.partition(".")[0]) is not None


def incomplete_modules(platform: str) -> frozenset[str]:
    """The modules that are there, and lack something."""
    return frozenset(_NAMES[platform])
