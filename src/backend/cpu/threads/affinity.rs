//! Which processors threads may use and run on: thin wrappers over the scheduler's calls.

#[cfg(target_os = "linux")]
pub(super) use linux::*;
#[cfg(not(target_os = "linux"))]
pub(super) use other::*;

#[cfg(target_os = "linux")]
mod linux {
    /// The processors that the process may use (as its main thread may).
    pub(in super::super) fn allowed() -> Vec<usize> {
        // SAFETY: an all-zero `cpu_set_t` is a valid empty set; the call writes at most its size.
        let (set, rc) = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            let rc = libc::sched_getaffinity(libc::getpid(), size_of::<libc::cpu_set_t>(), &mut set);
            (set, rc)
        };
        if rc != 0 {
            return Vec::new();
        }
        // SAFETY: `CPU_ISSET` reads a bit below `CPU_SETSIZE` of an initialised set.
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
    }

    pub(in super::super) fn current() -> Option<usize> {
        // SAFETY: no arguments, no memory touched.
        usize::try_from(unsafe { libc::sched_getcpu() }).ok()
    }

    pub(in super::super) fn thread_id() -> usize {
        // SAFETY: `gettid` takes nothing and cannot fail.
        unsafe { libc::syscall(libc::SYS_gettid) as usize }
    }

    pub(in super::super) fn pin(tid: usize, cpu: usize) {
        // SAFETY: `cpu` came from `allowed`, so it is below `CPU_SETSIZE`; the set outlives the call.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            libc::sched_setaffinity(tid as libc::pid_t, size_of::<libc::cpu_set_t>(), &set);
        }
    }
}

/// No pinning; the number of processors still decides whether to spin.
#[cfg(not(target_os = "linux"))]
mod other {
    pub(in super::super) fn allowed() -> Vec<usize> {
        (0..std::thread::available_parallelism().map_or(1, |n| n.get())).collect()
    }

    pub(in super::super) fn current() -> Option<usize> {
        None
    }

    pub(in super::super) fn thread_id() -> usize {
        1
    }

    pub(in super::super) fn pin(_tid: usize, _cpu: usize) {}
}
