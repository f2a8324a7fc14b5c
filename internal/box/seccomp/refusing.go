//go:build linux && (amd64 || arm64)

package seccomp

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// refusing returns the rules of Hardening whose calls the listener refuses. Only refusals that are reported go to the
// listener; the filter itself applies the rest of such a rule, as Hardening would.
func refusing(o Options) []Rule {
	if !o.Report {
		return nil
	}
	rules := slices.DeleteFunc(allRules(o), func(r Rule) bool { return !r.Tell })
	for i := range rules {
		r := &rules[i]
		if len(r.Cases) == 0 {
			r.Do = Notify
			continue
		}
		r.Cases = slices.Clone(r.Cases)
		for j := range r.Cases {
			if c := &r.Cases[j]; !c.Quiet && c.Do != Allow {
				c.Do = Notify
			}
		}
	}
	return rules
}

// Refusals are the rules, by call number, for the calls that Notifying passes on to be refused.
type Refusals map[uint32]Rule

// RefusalsOf returns the rules for the calls that NotifyOptions.Refuse passes on; none unless o.Report is set.
func RefusalsOf(o Options) Refusals {
	if !o.Report {
		return nil
	}
	t := Refusals{}
	for _, r := range allRules(o) {
		if !r.Tell {
			continue
		}
		for _, nr := range r.Calls {
			t[nr] = r
		}
	}
	return t
}

// Answer returns the name of a call, and the error that the filter would have returned. ok says that the call must be
// refused. It depends only on the number, so that no doubt about arguments lets a call pass.
func (t Refusals) Answer(nr uint32, args [6]uint64) (name string, errno unix.Errno, ok bool) {
	r, ok := t[nr]
	if !ok {
		return "", 0, false
	}
	errno = unix.EPERM
	if a := r.answer(args); a&unix.SECCOMP_RET_ACTION_FULL == unix.SECCOMP_RET_ERRNO {
		errno = unix.Errno(a & unix.SECCOMP_RET_DATA)
	}
	return reportedNames[nr], errno, true
}

// answer evaluates the code of block.
func (r Rule) answer(args [6]uint64) Action { return r.decide(args).Do }

// decide returns the case that applies.
func (r Rule) decide(args [6]uint64) Case {
	if len(r.Cases) == 0 {
		return Case{Do: r.Do}
	}
	for _, c := range r.Cases {
		if !slices.ContainsFunc(c.When, func(t Test) bool { return !t.holds(args) }) {
			return c
		}
	}
	return Case{Do: Allow}
}

// holds evaluates the code of a test.
func (t Test) holds(args [6]uint64) bool {
	v := uint32(args[t.Arg])
	if t.Mask != 0 {
		v &= t.Mask
	}
	switch t.Is {
	case AnyBits:
		return v&t.Of[0] != 0
	case NotIn:
		return !slices.Contains(t.Of, v)
	}
	return slices.Contains(t.Of, v)
}

// reportedNames maps the calls whose refusals are reported to their names.
var reportedNames = func() map[uint32]string {
	m := map[uint32]string{
		unix.SYS_SOCKET: "socket", unix.SYS_SOCKETPAIR: "socketpair", unix.SYS_IOCTL: "ioctl", unix.SYS_CLONE: "clone",
		unix.SYS_UNSHARE: "unshare", unix.SYS_SETNS: "setns",
		unix.SYS_MOUNT: "mount", unix.SYS_UMOUNT2: "umount2", unix.SYS_PIVOT_ROOT: "pivot_root", unix.SYS_FSOPEN: "fsopen",
		unix.SYS_FSMOUNT: "fsmount", unix.SYS_FSCONFIG: "fsconfig",
		unix.SYS_FSPICK: "fspick", unix.SYS_OPEN_TREE: "open_tree", unix.SYS_OPEN_TREE_ATTR: "open_tree_attr",
		unix.SYS_MOVE_MOUNT: "move_mount", unix.SYS_MOUNT_SETATTR: "mount_setattr",
		unix.SYS_BPF: "bpf", unix.SYS_PERF_EVENT_OPEN: "perf_event_open", unix.SYS_USERFAULTFD: "userfaultfd",
		unix.SYS_LOOKUP_DCOOKIE: "lookup_dcookie",
		unix.SYS_ADD_KEY:        "add_key", unix.SYS_REQUEST_KEY: "request_key", unix.SYS_KEYCTL: "keyctl",
		unix.SYS_OPEN_BY_HANDLE_AT: "open_by_handle_at", unix.SYS_PIDFD_GETFD: "pidfd_getfd",
		unix.SYS_FANOTIFY_INIT: "fanotify_init", unix.SYS_FANOTIFY_MARK: "fanotify_mark",
		unix.SYS_KEXEC_LOAD: "kexec_load", unix.SYS_KEXEC_FILE_LOAD: "kexec_file_load", unix.SYS_INIT_MODULE: "init_module",
		unix.SYS_FINIT_MODULE: "finit_module", unix.SYS_DELETE_MODULE: "delete_module",
		unix.SYS_REBOOT: "reboot", unix.SYS_SWAPON: "swapon", unix.SYS_SWAPOFF: "swapoff", unix.SYS_ACCT: "acct",
		unix.SYS_QUOTACTL: "quotactl", unix.SYS_QUOTACTL_FD: "quotactl_fd",
		unix.SYS_SYSLOG: "syslog", unix.SYS_NFSSERVCTL: "nfsservctl", unix.SYS_VHANGUP: "vhangup",
		unix.SYS_PRLIMIT64: "prlimit64", unix.SYS_PERSONALITY: "personality", unix.SYS_PTRACE: "ptrace",
		unix.SYS_PROCESS_VM_READV: "process_vm_readv", unix.SYS_PROCESS_VM_WRITEV: "process_vm_writev",
		unix.SYS_SCHED_SETAFFINITY: "sched_setaffinity", unix.SYS_SCHED_SETSCHEDULER: "sched_setscheduler",
		unix.SYS_SCHED_SETATTR: "sched_setattr", unix.SYS_SCHED_SETPARAM: "sched_setparam",
		unix.SYS_SETPRIORITY: "setpriority", unix.SYS_IOPRIO_SET: "ioprio_set", unix.SYS_MQ_UNLINK: "mq_unlink",
		unix.SYS_KILL: "kill", unix.SYS_TKILL: "tkill", unix.SYS_TGKILL: "tgkill",
		unix.SYS_RT_SIGQUEUEINFO: "rt_sigqueueinfo", unix.SYS_RT_TGSIGQUEUEINFO: "rt_tgsigqueueinfo",
	}
	maps.Copy(m, reportedArch)
	return m
}()
