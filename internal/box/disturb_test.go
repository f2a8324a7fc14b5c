//go:build linux && (amd64 || arm64)

package box_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/control"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/plan"
)

var (
	disturbTries = flag.Int("disturb.tries", 24,
		"how many steps each TestDisturbed makes fail; 0 is each step with each error")
	disturbSeed = flag.Uint64("disturb.seed", 0, "the order in which TestDisturbed tries steps; 0 is any, which it logs")
	disturbStep = flag.String("disturb.step", "", "the steps alone that TestDisturbed tries, by a part of their names")
)

// disturbs is the main function of a helper process of these tests. ok is false if this process is not one.
func disturbs(args []string) (code int, ok bool) {
	if args[0] != boxtest.DisturberArgv0 && args[0] != boxtest.DisturbedArgv0 {
		return 0, false
	}
	return boxtest.DisturbMain(args), true
}

// errnos are the errors of a system call of the set-up: refused, missing, or out of resources.
var errnos = []unix.Errno{unix.EPERM, unix.EACCES, unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP, unix.ENOENT, unix.EMFILE,
	unix.ENOMEM, unix.EAGAIN, unix.ENOSPC, unix.EIO}

// seen is a script that prints the protections of a box, independently of Enforced. Init's program is the keeper's own
// file, read-only, or a sealed copy in memory, which has another owner.
const seen = `grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp)' /proc/self/status
grep . /proc/self/uid_map /proc/self/gid_map /proc/sys/user/max_* /proc/sys/kernel/pid_max
sed -E 's/^[0-9]+ [0-9]+ [0-9:]+ //; s/(shared|master|propagate_from):[0-9]+/\1/g; s,/proc/self/fd/[0-9]+,FD,g; s,coppice-ca/[0-9]+(\.[0-9]+)?,coppice-ca/N,' /proc/self/mountinfo
hostname; ulimit -a; cat /proc/self/limits; stat -c '%n %F %a %u %t:%T' /dev/* /run/* / | sed -E 's,^(/run/coppice-(init|contained) .*) [0-9]+ 0:0$,\1 OWNER,'; ls -A / /sys /proc/acpi; cat /etc/resolv.conf
kill -0 1 2>&1; id`

// disturbedLimits are the limits of the boxes. Each limit adds a step to the set-up.
var disturbedLimits = plan.Limits{Memory: 512 << 20, Pids: 400, Output: 1 << 20, Files: 500, TimeMS: 300_000}

func TestDisturbed_Process(t *testing.T) {
	t.Parallel()
	disturbAll(t, func(t testing.TB) plan.Config {
		c := config(t)
		c.Limits = disturbedLimits
		return c
	})
}

func TestDisturbed_Supervised(t *testing.T) {
	t.Parallel()
	disturbAll(t, func(t testing.TB) plan.Config {
		c := supervised(t)
		c.Limits = disturbedLimits
		c.Phases = []plan.Phase{
			phaseOf(t, time.Time{}, "version: 1\nnetwork:\n  allow: [{host: web.example, ports: [443], methods: [GET]}]")}
		return c
	})
}

func TestDisturbed_Container(t *testing.T) {
	t.Parallel()
	onlyInFullAsUser(t)
	requireContainer(t)
	disturbAll(t, func(t testing.TB) plan.Config {
		c := contained(t)
		c.Limits = disturbedLimits
		c.Phases = []plan.Phase{
			phaseOf(t, time.Time{}, "version: 1\nnetwork:\n  allow: [{host: web.example, methods: [GET]}]")}
		return c
	})
}

// disturbance is one try.
type disturbance struct {
	step   boxtest.Step
	errno  unix.Errno
	always bool
}

func (d disturbance) String() string {
	s := fmt.Sprintf("%v fails with %s", d.step, unix.ErrnoName(d.errno))
	if d.always {
		s += ", and those after it"
	}
	return s
}

// disturbAll makes each step of a start fail in turn, and checks that the box has the
// protections of an undisturbed one, or is refused with a typed error.
func disturbAll(t *testing.T, make func(testing.TB) plan.Config) {
	if looptest.Race {
		t.Skip("needs plain-build: the race detector's calls are not the program's")
	}
	c := make(t)
	c.ID = fmt.Sprintf("disturbed%08x", rand.Uint32())
	c.Self = true
	if err := os.Mkdir(filepath.Join(c.RunDir, plan.SelfDir), 0o755); err != nil {
		t.Fatal(err)
	}
	// The first start of a sandbox creates what later starts reuse.
	calm, err := boxtest.Disturb(t.Context(), boxtest.Disturbance{Config: c})
	if err == nil {
		calm, err = boxtest.Disturb(t.Context(), boxtest.Disturbance{Config: c, Script: seen})
	}
	if err == nil && calm.Err != nil {
		t.Fatalf("undisturbed: refused as %s: %s (%s)", calm.Err.Kind, calm.Err.Message, calm.Err.Hint)
	}
	if err != nil || calm.Trouble != "" {
		t.Fatalf("undisturbed: %+v, %v", calm, err)
	}
	if len(calm.Enforced.Protections()) == 0 || calm.Outside == "" {
		t.Fatalf("undisturbed: %+v", calm)
	}
	seed := *disturbSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	most := *disturbTries
	if c.Tier == plan.TierContainer && testing.Short() {
		most /= 4 // most steps are those of tier supervised
	}
	tries := disturbances(calm.Steps, rand.New(rand.NewPCG(seed, 0)))
	done, started, begun := 0, 0, time.Now()
	for _, d := range tries {
		if done == most && done > 0 {
			break
		}
		if !strings.Contains(d.String(), *disturbStep) {
			continue
		}
		done++
		r, err := boxtest.Disturb(t.Context(),
			boxtest.Disturbance{Config: c, Script: seen, Step: d.step, Errno: d.errno, Always: d.always})
		if err == nil && r.Err == nil {
			started++
		}
		judge(t, c, d, calm, r, err)
	}
	t.Logf("seed %d: %d of %d tries in %v, of which %d started", seed, done, len(tries), time.Since(begun).
		Round(time.Second), started)
}

// disturbances lists the tries. Each step comes once, with a random error, before any step comes with another error.
func disturbances(steps []boxtest.Step, chance *rand.Rand) (all []disturbance) {
	var rounds [][]disturbance
	for _, s := range steps {
		last := s.K
		for s.K = 1; s.K <= last; s.K++ {
			of := errorsOf(s)
			chance.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
			for i, d := range of {
				if i == len(rounds) {
					rounds = append(rounds, nil)
				}
				rounds[i] = append(rounds[i], d)
			}
		}
	}
	for _, r := range rounds {
		slices.SortFunc(r, func(a, b disturbance) int { return strings.Compare(a.String(), b.String()) })
		chance.Shuffle(len(r), func(i, j int) { r[i], r[j] = r[j], r[i] })
		all = append(all, r...)
	}
	return all
}

// errorsOf lists the ways in which a step can fail.
func errorsOf(s boxtest.Step) (all []disturbance) {
	for _, e := range errnos {
		if e == unix.EAGAIN &&
			slices.Contains([]int{unix.SYS_READ, unix.SYS_WRITE, unix.SYS_RECVMSG, unix.SYS_SENDMSG, unix.SYS_CONNECT}, s.Call) {
			continue // EAGAIN would mean that the caller may wait and be woken up
		}
		all = append(all, disturbance{s, e, false})
		if s.K == 1 {
			all = append(all, disturbance{s, e, true})
		}
	}
	return all
}

// judge compares the result of a disturbed start with the calm one.
func judge(t *testing.T, c plan.Config, d disturbance, calm, r boxtest.Disturbed, err error) {
	t.Helper()
	bad := func(format string, args ...any) {
		t.Helper()
		log, _ := os.ReadFile(filepath.Join(c.RunDir, "keeper.log"))
		t.Errorf("%v, %s: %s\nkeeper.log: %.800s", d, r.Failed, fmt.Sprintf(format, args...), log)
	}
	if err != nil {
		bad("%v", err)
		return
	}
	if r.Failed == "" {
		return // no call with that number was made
	}
	left, err := filepath.Glob("/sys/fs/cgroup/*/coppice*" + c.ID + "*")
	more, _ := filepath.Glob("/sys/fs/cgroup/*/*/coppice*" + c.ID + "*")
	left = append(left, more...)
	for _, dir := range left { // also one whose removal failed, or the next try is blamed for it
		_ = os.Remove(dir)
	}
	if (err != nil || len(left) > 0) && d.step.Call != unix.SYS_UNLINKAT {
		bad("control groups are left: %v, %v", left, err)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), c.RunDir) {
		bad("something is mounted: %v", err)
	}
	if r.Err != nil {
		// GVisor may wait until the deadline for the part of it that failed.
		if r.Err.Kind == string(fault.Internal) || r.Err.Kind == string(fault.Timeout) && !d.inGvisor() {
			bad("refused as %s: %s (%s)", r.Err.Kind, r.Err.Message, r.Err.Hint)
		}
		return
	}
	var lost []string
	for _, i := range calm.Enforced.Items {
		if now := r.Enforced.State(i.Name); i.State == plan.On && now != plan.On {
			lost = append(lost, i.Name+" "+now)
		}
	}
	for _, i := range r.Enforced.Items {
		// A sandbox may have made the renames that Recover could not undo, so they refuse no start.
		if i.State == plan.Weak && calm.Enforced.State(i.Name) == "" && i.Name != "renames" {
			lost = append(lost, i.Name)
		}
	}
	if len(lost) > 0 {
		if name := d.documented(r.Failed); name == "" {
			bad("started without %q", lost)
			return
		}
		c.Require = calm.Enforced.Protections()
		again, err := boxtest.Disturb(t.Context(),
			boxtest.Disturbance{Config: c, Step: d.step, Errno: d.errno, Always: d.always})
		if err != nil || again.Err == nil && len(again.Enforced.Lost(c.Require)) > 0 {
			bad("started without %q, which it has had before: %+v, %v", lost, again, err)
		}
		return
	}
	if r.Trouble != "" {
		return // the call failed after the start and ended the box
	}
	other := difference(calm.Inside, r.Inside)
	if r.Inside != calm.Inside && d.documented(r.Failed) == "" && !d.ofAFile(r.Failed) && !d.ofABundle(r.Failed, other) {
		bad("started with the protections, and inside it is another: %s", other)
	}
	if other = heldOtherwise(calm.Outside, r.Outside, d.step.Role); other != "" && d.documented(r.Failed) == "" {
		bad("started with the protections, and other things hold it: %s", other)
	}
}

// heldOtherwise returns the difference between what confines the processes of two boxes, where a call of a process
// called role failed. GVisor's set of processes for the sandbox's code varies: some may be missing, but none may be
// confined differently. A gate that exits because of the failed call weakens nothing: without a gate no connection
// passes. Nor does a process that has fewer capabilities: GVisor's library ignores EINVAL from PR_CAP_AMBIENT_RAISE,
// which kernels before 4.3 lack.
func heldOtherwise(was, is, role string) string {
	lines := strings.Split(difference(was, is), "\n")
	for _, l := range lines {
		if less, ok := strings.CutPrefix(l, "+ "); ok {
			same := func(l string) bool { return strings.HasPrefix(l, "- ") && withinCapabilities(l[2:], less) }
			if i := slices.IndexFunc(lines, same); i >= 0 {
				full := lines[i]
				lines = slices.DeleteFunc(slices.Clone(lines), func(s string) bool { return s == l || s == full })
			}
		}
	}
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool {
		return strings.HasPrefix(l, "- "+boxtest.Nameless+" ") || role == control.Argv0 && strings.HasPrefix(l, "- "+role+" ")
	}), "\n")
}

// withinCapabilities reports whether two descriptions of a process are the same, except that is has fewer capabilities
// than was.
func withinCapabilities(was, is string) bool {
	a, b := strings.Fields(was), strings.Fields(is)
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		name, full, _ := strings.Cut(a[i], "=")
		other, less, _ := strings.Cut(b[i], "=")
		if a[i] == b[i] {
			continue
		}
		all, err := strconv.ParseUint(full, 16, 64)
		some, err2 := strconv.ParseUint(less, 16, 64)
		if name != other || !strings.HasPrefix(name, "Cap") || err != nil || err2 != nil || some&^all != 0 {
			return false
		}
	}
	return true
}

// TestHeldOtherwise_AllowsFewerCapabilities checks that fewer capabilities are no difference, and that more, or another
// filter, are one.
func TestHeldOtherwise_AllowsFewerCapabilities(t *testing.T) {
	t.Parallel()
	const gofer = "runsc-gofer CapEff=000000000004001f CapAmb=000000000004001f Seccomp=2"
	for is, same := range map[string]bool{
		gofer: true,
		"runsc-gofer CapEff=000000000004001f CapAmb=000000000000001f Seccomp=2": true,
		"runsc-gofer CapEff=000000000004001f CapAmb=00000000000c001f Seccomp=2": false,
		"runsc-gofer CapEff=000000000004001f CapAmb=000000000000001f Seccomp=0": false,
		"runsc-gofer CapEff=000000000004001f CapAmb=000000000004001f Seccomp=0": false,
		"other CapEff=000000000004001f CapAmb=000000000004001f Seccomp=2":       false,
		"": false,
	} {
		if got := heldOtherwise(gofer, is, "runsc-sandbox"); (got == "") != same {
			t.Errorf("%q: %q", is, got)
		}
	}
}

// inGvisor reports whether the call is one of gVisor's own.
func (d disturbance) inGvisor() bool { return strings.HasPrefix(d.step.Role, "runsc-") }

// inInit reports whether the call is one of init, or of the conductor that makes its root.
func (d disturbance) inInit() bool {
	own := []string{initlink.Argv0, initlink.ContainerArgv0, filepath.Base(plan.ContainedPath)}
	return slices.Contains(own, d.step.Role)
}

// ofAFile reports whether the call looked at a file of the sandbox and failed as for a file that does not exist or
// cannot be read. GVisor's answer is all that init knows of any file. Init itself looks at files in /etc before it
// mounts its own over them; none of these is a protection.
func (d disturbance) ofAFile(call string) bool {
	looks := []string{"statx", "newfstatat", "openat", "openat2", "readlinkat"}
	ofRoot := d.inGvisor() || d.inInit() && strings.Contains(call, `"etc/`)
	return ofRoot && slices.Contains(looks, d.step.Name()) &&
		slices.Contains([]unix.Errno{unix.ENOENT, unix.EACCES, unix.EPERM}, d.errno)
}

// ofABundle reports whether init could not read a certificate bundle that it had found in the sandbox, and only the
// file that it mounts over that bundle is missing. See rootspec.FoundFile.ReadAll.
func (d disturbance) ofABundle(call, other string) bool {
	reads := d.inInit() && d.step.Call == unix.SYS_OPENAT2 && strings.Contains(call, `"self/fd/`)
	return reads && slices.Contains([]unix.Errno{unix.EACCES, unix.EPERM, unix.ENOENT}, d.errno) &&
		!slices.ContainsFunc(strings.Split(strings.TrimSpace(other), "\n"),
			func(l string) bool { return !strings.HasPrefix(l, "- /coppice-ca/") })
}

// documented returns the name of the documented fallback for a start whose call failed in this way, or "": the host
// then lacks the protection that the call sets up.
func (d disturbance) documented(call string) string {
	lacks := func(errnos ...unix.Errno) bool { return slices.Contains(errnos, d.errno) }
	switch {
	case strings.Contains(call, "/sys/fs/cgroup") &&
		lacks(unix.ENOENT, unix.EACCES, unix.EPERM, unix.EROFS, unix.EBUSY, unix.EINVAL, unix.EOPNOTSUPP):
		return "limits of control groups"
	case d.step.Call == unix.SYS_LANDLOCK_CREATE_RULESET && lacks(unix.ENOSYS, unix.EOPNOTSUPP, unix.EPERM):
		return "Landlock"
	case d.step.Call == unix.SYS_MOUNT_SETATTR && d.step.Role == "coppice-keeper" &&
		lacks(unix.EINVAL, unix.EOPNOTSUPP, unix.ENOSYS):
		return "shifted ids"
	case strings.Contains(call, "sys/user/") &&
		(lacks(unix.EROFS, unix.EACCES, unix.EPERM) || d.step.Call == unix.SYS_OPENAT2 && lacks(unix.ENOENT)):
		return "kernel counts"
	case d.inInit() &&
		slices.Contains([]int{unix.SYS_OPENAT2, unix.SYS_OPEN_TREE, unix.SYS_MOUNT_SETATTR}, d.step.Call) &&
		lacks(unix.ENOENT):
		return "what of /proc and /sys there is not"
	// See notify.OwnsProc.
	case d.inInit() && d.step.Call == unix.SYS_OPENAT && strings.Contains(call, `"/proc"`) &&
		lacks(unix.ENOENT, unix.ENOTDIR, unix.ELOOP),
		d.inInit() && d.step.Call == unix.SYS_READLINKAT && strings.Contains(call, `"self"`) &&
			lacks(unix.ENOENT):
		return "a /proc of the pid namespace"
	case slices.Contains([]int{unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT}, d.step.Call) &&
		d.inInit() && lacks(unix.EPERM):
		return "a procfs of its own"
	case d.inInit() && d.step.Call == unix.SYS_SETHOSTNAME && lacks(unix.EPERM):
		return "a host name of its own"
	}
	return ""
}

func difference(was, is string) string {
	var out []string
	a, b := strings.Split(was, "\n"), strings.Split(is, "\n")
	for _, l := range a {
		if !slices.Contains(b, l) {
			out = append(out, "- "+l)
		}
	}
	for _, l := range b {
		if !slices.Contains(a, l) {
			out = append(out, "+ "+l)
		}
	}
	return strings.Join(out, "\n")
}

func TestHeldOtherwise_DetectsLostProtection(t *testing.T) {
	t.Parallel()
	const sentry, gofer, stub = "runsc-sandbox Seccomp_filters=3", "runsc-gofer Seccomp_filters=3",
		boxtest.Nameless + " Seccomp_filters=4"
	lines := func(all ...string) string { return strings.Join(all, "\n") }
	was := lines(stub, gofer, sentry)
	for _, same := range []string{was, lines(gofer, sentry)} {
		if d := heldOtherwise(was, same, ""); d != "" {
			t.Errorf("%q was reported as different: %s", same, d)
		}
	}
	for _, other := range []string{lines(stub, gofer, "runsc-sandbox Seccomp_filters=2"), lines(stub, gofer),
		lines(stub, gofer, sentry, boxtest.Nameless+" Seccomp_filters=2")} {
		if heldOtherwise(was, other, "") == "" {
			t.Errorf("a lost protection was not detected: %q", other)
		}
	}
}
