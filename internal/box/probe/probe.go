//go:build linux && (amd64 || arm64)

package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/program"
)

// patience bounds a child: a mount of a dead network file system may hang. A loaded machine can take some seconds for
// what usually takes a few tens of milliseconds, and a host that was not examined in time gets no sandbox.
const patience = 20 * time.Second

// kernelPatience bounds the start of a kernel, which takes much longer.
const kernelPatience = 30 * time.Second

// Probe tries the features that o selects. It makes no lasting change and takes a few tens of milliseconds. It returns
// an error only if nothing could be tried; a lack or an unknown result is an item.
func Probe(ctx context.Context, o Options) (Report, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return Report{}, fault.Wrap(err, "probe the kernel")
	}
	r := Report{Kernel: unix.ByteSliceToString(uts.Release[:]), User: fmt.Sprintf("uid %d", os.Getuid())}
	switch {
	case o.Root:
		r.User = "root"
	case os.Getuid() == 0:
		r.User = "root of a user namespace"
	}
	all := ctx
	ctx, cancel := context.WithTimeout(all, patience)
	defer cancel()

	home := existing(o.Home)
	host := lookAround(o.Root)
	var plain, mounts, guest childReport
	var wg sync.WaitGroup
	wg.Go(func() { plain = runChild(ctx, o, home, taskPlain) })
	wg.Go(func() { mounts = runChild(ctx, o, home, taskMounts) })
	wg.Go(func() { guest = runChild(ctx, o, home, taskGuest) })
	features := []Item{landlock(), homeFS(home)}
	if !o.Quick {
		features = append(features, cgroup(), subordinateIDs(o.Root), diskLimit(o.Root, home))
	}
	wg.Wait()
	features = append(features, guest.items(taskGuest, host)...)
	features = append(features, mounts.items(taskMounts, host)...)
	for _, it := range plain.items(taskPlain, host) {
		if !slices.ContainsFunc(features, func(f Item) bool { return f.Name == it.Name }) {
			features = append(features, it)
		}
	}
	r.Items = features
	r.Items = append(r.Items, drivers(&r, home)...)
	judged := tiers(&r, host)
	if len(o.Runtimes) > 0 {
		judged = append([]Item{container(all, judged, o.Runtimes)}, judged...)
	}
	if o.GVisor != nil {
		judged = append([]Item{gvisor(all, judged, o.GVisor, host)}, judged...)
	}
	r.Items = append(judged, r.Items...)
	return r, nil
}

// existing returns the nearest directory at or above path.
func existing(path string) string {
	for p := path; p != ""; p = filepath.Dir(p) {
		if info, err := os.Stat(p); err == nil && info.IsDir() {
			return p
		}
		if p == filepath.Dir(p) {
			break
		}
	}
	return os.TempDir()
}

// tiers derives the results for the tiers from the features.
func tiers(r *Report, h host) []Item {
	process := Item{Group: Tiers, Name: TierProcess, State: OK, Tried: "the features that it needs"}
	process.need(r, UserNamespaces, Seccomp, Devpts, FreshProc)
	var weak []string
	if process.State == OK {
		for _, need := range []string{UserNamespaces, Seccomp, Devpts, FreshProc} {
			if it, _ := r.Item(Features, need); it.State == Weak {
				weak = append(weak, need)
			}
		}
		for _, nice := range []string{SeccompNotify, Landlock} {
			if it, _ := r.Item(Features, nice); it.State == Unknown {
				process.need(r, nice) // the effect of its absence is not known
			}
		}
	}
	if process.State == OK {
		for _, nice := range []string{SeccompNotify, Landlock} {
			if r.Lacks(nice) {
				weak = append(weak, nice)
			}
		}
		if len(weak) > 0 {
			process.State, process.Detail = Weak, "without, or with a weak, "+strings.Join(weak, ", ")
			it, _ := r.Item(Features, weak[0])
			process.Remedy = it.Remedy
		} else {
			process.Detail = "user, mount, pid, ipc, uts, cgroup and net namespaces; seccomp; private /proc and /dev"
		}
	}
	supervised := process
	supervised.Name = TierSupervised
	if supervised.State == OK || supervised.State == Weak {
		if lacking := supervised.need(r, GateLink, SeccompNotify); !lacking && process.State == OK {
			supervised.Detail = "process, with rules for the network and a record of the programs that are started"
		}
	}
	workspace := Item{Group: Tiers, Name: TierWorkspace, State: OK, Tried: "nothing is required",
		Detail: "history without confinement"}
	if it, ok := r.Item(Features, Landlock); ok && (it.State == OK || it.State == Weak) {
		workspace.Detail = "history, with a lock of Landlock and seccomp, without namespaces"
	}
	for _, it := range []Item{process, supervised} {
		switch it.State {
		case OK, Weak:
			r.Tier = it.Name
		case Unknown:
			r.Tier = ""
		}
	}
	return []Item{supervised, process, workspace}
}

// need makes an item Missing if a feature that it needs is Missing, or else Unknown if one is Unknown, and reports
// whether there is such a feature.
func (it *Item) need(r *Report, features ...string) bool {
	for _, state := range []State{Missing, Unknown} {
		for _, name := range features {
			f, ok := r.Item(Features, name)
			if !ok {
				f.State = Missing
			}
			if f.State != state {
				continue
			}
			it.State, it.Detail, it.Errno, it.Remedy = state, "needs "+name, f.Errno, f.Remedy
			if state == Unknown {
				it.Detail += ", which could not be tried: " + f.Detail
			}
			return true
		}
	}
	return false
}

// gvisor probes tier gvisor by starting a sandbox, if the host has the features that the tier needs.
func gvisor(ctx context.Context, judged []Item, try func(context.Context) error, h host) Item {
	it := Item{Group: Tiers, Name: TierGVisor, State: OK, Tried: "started a sandbox of it",
		Detail: "a separate kernel for the sandbox, in user space"}
	if it.lacksAs(judged, TierProcess) {
		return it
	}
	ctx, cancel := context.WithTimeout(ctx, kernelPatience)
	defer cancel()
	if err := try(ctx); err != nil {
		it.State, it.Detail, it.Errno, it.Remedy = answerOf(err), oneLine(err), errnoName(err), h.kernelRemedy(err)
	}
	return it
}

// lacksAs reports whether a tier that the item's tier needs is not there, which is then also the item's result.
func (it *Item) lacksAs(judged []Item, tier string) bool {
	for _, other := range judged {
		if other.Name == tier && (other.State == Missing || other.State == Unknown) {
			it.State, it.Detail, it.Errno, it.Remedy = other.State, other.Detail, other.Errno, other.Remedy
			return true
		}
	}
	return false
}

// container probes tier container by starting a sandbox with each runtime, if the host has the features that the tier
// needs. The tier works if one of them does; the detail says what each does.
func container(ctx context.Context, judged []Item, list []Runtime) Item {
	it := Item{Group: Tiers, Name: TierContainer, State: Missing, Tried: "started a sandbox of it with each OCI runtime"}
	if it.lacksAs(judged, TierSupervised) {
		return it
	}
	var works, fails []string
	for _, r := range list {
		ctx, cancel := context.WithTimeout(ctx, kernelPatience) // one that hangs leaves the next their time
		err := r.Try(ctx)
		cancel()
		if err == nil {
			works = append(works, r.Name)
			continue
		}
		if state := answerOf(err); len(fails) == 0 || state == Unknown {
			it.State, it.Remedy = state, fault.HintOf(err)
		}
		fails = append(fails, oneLine(err))
	}
	if len(works) > 0 {
		it.State, it.Remedy = OK, ""
		fails = append([]string{"as supervised, in a container of " + strings.Join(works, " or ")}, fails...)
	}
	it.Detail = strings.Join(fails, "; ")
	return it
}

// oneLine returns the text of err on one line.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// drivers derives the results for the drivers from the features and the home.
func drivers(r *Report, home string) []Item {
	overlay := Item{Group: Drivers, Name: DriverOverlay, State: OK,
		Tried: "mounted it with userxattr, its upper directory in the home"}
	if it, ok := r.Item(Features, Overlay); !ok || it.State != OK {
		if !ok {
			it.State = Missing
		}
		overlay.State, overlay.Detail, overlay.Errno, overlay.Remedy = it.State, it.Detail, it.Errno, it.Remedy
	}
	cp := Item{Group: Drivers, Name: DriverCopy, State: OK, Tried: "access to the home",
		Detail: "plain directories; slower"}
	if it, ok := r.Item(Features, Whiteouts); ok && it.State != OK && it.State != Weak {
		cp.State, cp.Detail, cp.Errno, cp.Remedy = it.State, it.Detail, it.Errno, it.Remedy
	}
	if err := unix.Access(home, unix.W_OK|unix.X_OK); err != nil {
		cp.State, cp.Detail, cp.Errno = answer(err), "the home is not writable", errnoName(err)
		cp.Remedy = "make the home writable, or set COPPICE_HOME to a directory that is"
	}
	btrfs := Item{Group: Drivers, Name: DriverBtrfs, State: OK, Tried: "statfs of the home", Detail: "subvolumes"}
	if fs, err := fileSystem(home); err != nil {
		btrfs.State, btrfs.Detail, btrfs.Errno, btrfs.Remedy = answer(err), err.Error(), errnoName(err), retry
	} else if fs != "btrfs" {
		btrfs.State, btrfs.Detail = Missing, "the home is on "+fs
		btrfs.Remedy = "set COPPICE_HOME to a directory on btrfs"
	}
	for _, it := range []Item{cp, btrfs, overlay} {
		if it.State == OK {
			r.Driver = it.Name
		}
	}
	return []Item{overlay, cp, btrfs}
}

// Argv0 is the argv[0] with which coppice-init runs a self-test. A self-test does one task and prints a
// childReport.
const Argv0 = "coppice-probe"

type task string

const (
	taskPlain  task = "plain"  // like the daemon: in no new namespace
	taskMounts task = "mounts" // like the keeper: in its own mount namespace
	taskGuest  task = "guest"  // like init: in all namespaces
	taskHold   task = "hold"   // waits in a user namespace until its stdin closes
)

// config is passed as argv[2].
type config struct {
	Home  string `json:"home"`
	Root  bool   `json:"root"`
	Quick bool   `json:"quick"`
}

// result is the result of one try.
type result struct {
	Name   string `json:"name"`
	State  State  `json:"state"`
	Tried  string `json:"tried"`
	Detail string `json:"detail,omitempty"`
	Errno  string `json:"errno,omitempty"`
}

type childReport struct {
	Results []result `json:"results"`
	start   error    // why the child did not start
}

// runChild runs one task in the namespaces of its kind.
func runChild(ctx context.Context, o Options, home string, t task) childReport {
	arg, err := json.Marshal(config{Home: home, Root: o.Root, Quick: o.Quick})
	if err != nil {
		return childReport{start: err}
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		return childReport{start: err}
	}
	defer null.Close()
	input, err := program.Guard(o.Program, null)
	if err != nil {
		return childReport{start: err}
	}
	defer input.Close()
	cmd := exec.CommandContext(ctx, program.Path(o.Program))
	cmd.Args = []string{Argv0, string(t), string(arg)}
	cmd.Dir = "/"
	cmd.Env = []string{"GOMAXPROCS=1", "GOGC=off"}
	cmd.Stdin, cmd.WaitDelay = input, time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = namespaces(t)
	// errors.As distinguishes a refusal of clone from a failure of the program.
	err = cmd.Run()
	if ctx.Err() != nil {
		return childReport{start: ctx.Err()}
	}
	if err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			return childReport{start: err}
		}
	}
	var r childReport
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return childReport{start: fmt.Errorf("the self-test exited early: %s: %w", strings.TrimSpace(errs.String()), err)}
	}
	return r
}

// namespaces returns the attributes with which the child of a task starts. In a user namespace it is uid 0.
func namespaces(t task) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{}
	if t == taskPlain {
		return a
	}
	a.Cloneflags = syscall.CLONE_NEWNS
	if t == taskGuest {
		a.Cloneflags |= syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS |
			syscall.CLONE_NEWNET | unix.CLONE_NEWCGROUP
	}
	if t == taskGuest || os.Geteuid() != 0 {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return a
}

// tries lists the features of each task, for when its child did not start. The features after the first one of a task
// with namespaces need the first.
var tries = map[task][]string{
	taskPlain:  {Seccomp, SeccompNotify, Whiteouts},
	taskMounts: {Overlay},
	taskGuest:  {UserNamespaces, FreshProc, Devpts, GateLink},
}

// items converts a child's results to items.
func (c childReport) items(t task, h host) []Item {
	var items []Item
	if c.start != nil {
		for i, name := range tries[t] {
			it := Item{
				Group: Features, Name: name, State: answer(c.start), Tried: "started a process in new namespaces",
				Detail: refusal(c.start), Errno: errnoName(c.start), Remedy: h.remedy(UserNamespaces, errnoName(c.start)),
			}
			if i > 0 && t == taskGuest {
				it.Detail, it.Errno, it.Remedy = "needs "+UserNamespaces, "", ""
			}
			if it.State == Unknown && !h.none { // where no namespace may be created, clone(2) returns ENOSPC
				it.Remedy = retry
			}
			items = append(items, it)
		}
		return items
	}
	for _, r := range c.Results {
		it := Item{Group: Features, Name: r.Name, State: r.State, Tried: r.Tried, Detail: r.Detail, Errno: r.Errno}
		if r.State != OK {
			it.Remedy = h.remedy(r.Name, r.Errno)
		}
		if r.State == Unknown {
			it.Remedy = retry
		}
		items = append(items, it)
	}
	return items
}

// refusal returns the text of an error of a start, without the path of a program that the kernel refused to start.
func refusal(err error) string {
	var at *os.PathError
	if errors.As(err, &at) {
		return "a process in new namespaces cannot be started: " + at.Err.Error()
	}
	return err.Error()
}

// errnoName returns the name of the errno of err, such as "EPERM", or "".
func errnoName(err error) string {
	var e unix.Errno
	if errors.As(err, &e) {
		return unix.ErrnoName(e)
	}
	return ""
}
