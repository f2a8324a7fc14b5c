package plan

import (
	"fmt"
	"strconv"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// OwnTasks is the number of init's own tasks, which every limit of tasks includes.
const OwnTasks = 24

// TermGrace is the time between SIGTERM and SIGKILL for a command that has exceeded its time limit.
const TermGrace = 2 * time.Second

// leastData is the minimum RLIMIT_DATA that keeps init itself alive, in bytes.
const leastData = 256 << 20

// leastPidMax is the minimum pid_max that the kernel accepts (RESERVED_PIDS + 1).
const leastPidMax = 301

// limitNames are the names of the limits' items.
var limitNames = []string{"memory", "cpus", "pids", "disk", "time", "output", "files"}

// CPULack returns the error for a CPU limit that nothing enforces. Pinning a sandbox to some of the CPUs is
// not a substitute: it could choose others.
func CPULack() error {
	return fault.New(fault.Unsupported,
		"cannot enforce the limit cpus: no cpu controller is delegated to the daemon").
		WithHint("run the daemon as root, on a host that has the controller: grep cpu /proc/cgroups; " +
			"or drop cpus from the limits")
}

// memoryLack is the error for a memory limit in tier gvisor without a control group: resource limits cannot limit the
// sandbox's own kernel. In other tiers they are a weaker substitute, which strong refuses too.
func memoryLack(strong bool) error {
	mend := "run coppice in a session that has one: systemd-run --user --scope -p Delegate=yes; " +
		"or drop memory from the limits"
	if !strong {
		mend += ", or use --tier supervised"
	}
	return fault.New(fault.Unsupported,
		"cannot enforce the limit memory in tier gvisor: no memory controller is delegated to the daemon").
		WithHint("%s", mend)
}

// limits adds the limits of the box, and their mechanisms.
func (d *deciding) limits() {
	c, f := d.config, d.facts
	if n := c.Limits.MilliCPUs; n > 0 {
		d.add("cpus", On, fmt.Sprintf("%g processors' worth of time in all, control group", float64(n)/1000))
	}
	if n := c.Limits.TimeMS; n > 0 {
		d.add("time", On, fmt.Sprintf("%s for each command: then SIGTERM, and SIGKILL after %s",
			time.Duration(n)*time.Millisecond, TermGrace))
	}
	if n := c.Limits.Output; n > 0 {
		d.add("output", On, strconv.FormatInt(n, 10)+" bytes of each command, which is ended when it prints more")
	}
	if n := c.Limits.Files; n > 0 {
		d.guest.Files = uint64(n)
		if most := limit.OpenFilesOfHost(f.OpenFiles); !d.own && f.OpenFiles > 0 {
			d.guest.Files = min(d.guest.Files, most)
		}
		d.add("files", On, strconv.FormatUint(d.guest.Files, 10)+" for each process, RLIMIT_NOFILE")
	}
	if n := c.Limits.Disk; n > 0 {
		d.add("disk", On, strconv.FormatInt(n, 10)+" bytes, "+c.DiskBy)
	}
	if n := c.Limits.Memory; n > 0 {
		d.memory(n)
	}
	if n := c.Limits.Pids; n > 0 {
		d.tasks(n)
	}
}

// memory limits the memory to n bytes.
func (d *deciding) memory(n int64) {
	switch {
	case d.facts.Cgroup.Memory && d.own:
		d.add("memory", On, strconv.FormatInt(n, 10)+" bytes in all, the sandbox's own kernel among them, "+
			"which ends with all of it when there are more; control group")
	case d.facts.Cgroup.Memory:
		d.add("memory", On, strconv.FormatInt(n, 10)+" bytes in all, control group")
	default:
		d.guest.Data = uint64(max(n, leastData))
		d.add("memory", Weak, fmt.Sprintf("RLIMIT_DATA: %d bytes for each process, not in all; "+
			"no memory controller is delegated to the daemon", d.guest.Data))
	}
}

// tasks limits the tasks to n.
func (d *deciding) tasks(n int64) {
	c, f := d.config, d.facts
	d.guest.Tasks = true
	switch {
	case d.own:
		d.guest.NProc = uint64(n + OwnTasks)
		if d.single {
			d.add("pids", On, strconv.FormatInt(n, 10)+
				" tasks, RLIMIT_NPROC of the sandbox's own kernel, which has one user")
		} else {
			d.add("pids", Weak, strconv.FormatInt(n, 10)+
				" tasks of each user, RLIMIT_NPROC of the sandbox's own kernel")
		}
	case f.Cgroup.Pids:
		d.add("pids", On, strconv.FormatInt(n, 10)+" tasks, control group")
	case f.PidMax && n+OwnTasks >= leastPidMax:
		d.guest.PidMax = int(n + OwnTasks)
		d.add("pids", On, strconv.FormatInt(n, 10)+" tasks, pid_max of the pid namespace")
	case f.PidMax && c.Caller.Root && f.Shift == 0:
		d.guest.PidMax = leastPidMax
		d.add("pids", Weak,
			"about 280 tasks: the lowest possible pid_max; no pids controller is delegated to the daemon")
	case !c.Caller.Root || f.Shift != 0:
		d.guest.NProc = uint64(n + OwnTasks)
		if f.PidMax {
			d.guest.PidMax = leastPidMax
		}
		d.add("pids", Weak, "RLIMIT_NPROC: counted for each user; no pids controller is delegated to the daemon")
	default:
		d.add("pids", Off, "no pids controller is delegated to the daemon, "+
			"and the kernel has no pid_max for each namespace (Linux 6.14)")
	}
}
