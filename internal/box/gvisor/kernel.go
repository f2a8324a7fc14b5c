//go:build linux && (amd64 || arm64)

package gvisor

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/procs"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/plan"
)

// containerID is the same in every conductor, so that another one can resume an image. Each conductor has its own
// directory.
const containerID = "coppice"

// kernel is gVisor's kernel. Its processes exit with this one.
type kernel struct {
	container *container.Container
}

// settings returns gVisor's configuration. Options that affect security are set even to their defaults.
func settings() (*config.Config, error) {
	flags := flag.NewFlagSet("gvisor", flag.ContinueOnError)
	config.RegisterFlags(flags)
	if err := flags.Parse([]string{
		"--root=" + worldState,
		"--platform=systrap",
		"--ignore-cgroups",                                    // the keeper's control group contains all of it
		"--network=none",                                      // except for the link
		"--overlay2=none",                                     // the overlay is Coppice's: captures see changes at once
		"--file-access=shared", "--file-access-mounts=shared", // so are changes from outside
		"--host-uds=none", "--host-fifo=none", "--net-raw=false", "--allow-suid=false",
		"--host-settings=ignore",         // the host chooses its own settings
		"--gofer-network-namespace=host", // the conductor's, which is empty
		"--net-disconnect-ok",            // an image keeps connections only between its own processes
	}); err != nil {
		return nil, err
	}
	return config.NewFromFlags(flags)
}

// newKernel starts the kernel; nothing runs in it yet. stdio is for the future PID 1, and stays the caller's.
func newKernel(g plan.Guest, stdio [3]*os.File) (*kernel, error) {
	conf, err := settings()
	if err != nil {
		return nil, fault.Wrap(err, "set gVisor up")
	}
	spec, err := specOf(g)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return nil, fault.Wrap(err, "describe the sandbox to gVisor")
	}
	if err := os.WriteFile(filepath.Join(worldState, "config.json"), b, 0o600); err != nil {
		return nil, fault.Wrap(err, "describe the sandbox to gVisor")
	}
	// gVisor passes the descriptors of these variables to the container.
	ours := [3]*os.File{os.Stdin, os.Stdout, os.Stderr}
	os.Stdin, os.Stdout, os.Stderr = stdio[0], stdio[1], stdio[2]
	defer func() { os.Stdin, os.Stdout, os.Stderr = ours[0], ours[1], ours[2] }()
	c, err := container.New(conf, container.Args{ID: containerID, Spec: spec, BundleDir: worldState})
	if err != nil {
		return nil, fault.New(fault.Unsupported, "cannot start gVisor on this host").Because(err).
			WithHint("see what this host allows: coppice system probe")
	}
	return &kernel{container: c}, nil
}

// call makes a call to the kernel that returns no result.
func (k *kernel) call(method string, arg any) error { return k.ask(method, arg, nil) }

// ask makes a call to the kernel that returns a result.
func (k *kernel) ask(method string, arg, result any) error {
	conn, err := client.ConnectTo(k.container.Sandbox.GetControlSocketPath())
	if err != nil {
		return fault.Wrap(err, "connect to the sandbox's kernel")
	}
	return errors.Join(asFault(conn.Call(method, arg, result)), conn.Close())
}

// asFault converts an error of the kernel, which arrives as text, to a fault: a full disk can be recognized only
// by the text. It drops the stacks of gVisor's goroutines, which errors about images include.
func asFault(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		if strings.Contains(text, full.Error()) {
			return full
		}
	}
	if short, _, stacks := strings.Cut(text, "\ngoroutine "); stacks {
		return errors.New(strings.TrimSuffix(short, ":"))
	}
	return err
}

// begin starts PID 1.
func (k *kernel) begin(s setup) error {
	if err := k.call(boot.ContMgrSetNetworkArgs, links(s.nic, false)); err != nil {
		return failed(err, "set up the sandbox's network")
	}
	id := containerID
	return failed(k.call(boot.ContMgrRootContainerStart, &id), "start the sandbox's init")
}

// failed wraps an error of the sandbox's kernel while a sandbox starts. The error arrives as text, or as the end of the
// kernel, and must not be reported as a bug of Coppice (fault.Internal).
func failed(err error, doing string) error {
	if fault.KindOf(err) != fault.Internal {
		return fault.Wrap(err, "%s", doing)
	}
	return fault.New(fault.Unavailable, "%s: the sandbox's kernel failed", doing).Because(err).
		WithHint("free the resource that ran out (descriptors: ulimit -n, memory, processes), then try again; or use " +
			"another tier: coppice create --tier supervised")
}

// resume resumes a memory image. Pages that are not needed at once are read while the processes run.
func (k *kernel) resume(s setup) error {
	if err := k.call(boot.ContMgrSetNetworkArgs, links(s.nic, true)); err != nil {
		return failed(err, "set up the sandbox's network")
	}
	files := image{}
	for i, f := range s.image {
		files[initlink.ImageFiles[i]] = f
	}
	at, err := files.serve()
	if err != nil {
		return err
	}
	defer at.Close()
	err = k.call(boot.ContMgrRestore, &boot.RestoreOpts{
		FilePayload: urpc.FilePayload{Files: []*os.File{at}}, UseCheckpointGofer: true, Background: true,
	})
	if err != nil {
		return fault.New(fault.Unsupported, "gVisor cannot resume the memory image").Because(err).
			WithHint("rewind its files only: coppice rewind --files-only")
	}
	return nil
}

// links describes the sandbox's interfaces.
func links(nic *os.File, resumed bool) *boot.CreateLinksAndRoutesArgs {
	a := &boot.CreateLinksAndRoutesArgs{LoopbackLinks: []boot.LoopbackLink{boot.DefaultLoopbackLink}, IsRestore: resumed}
	if nic == nil {
		return a
	}
	l := link.BoxInterface()
	a.FilePayload = urpc.FilePayload{Files: []*os.File{nic}}
	eth := boot.FDBasedLink{Name: l.Name, MTU: l.MTU, NumChannels: 1, TXChecksumOffload: l.NoChecksums,
		RXChecksumOffload: l.NoChecksums, QDisc: config.QDiscNone}
	for _, p := range l.Addrs {
		eth.Addresses = append(eth.Addresses, boot.IPWithPrefix{Address: p.Addr().AsSlice(), PrefixLen: p.Bits()})
	}
	a.FDBasedLinks = []boot.FDBasedLink{eth}
	for _, gw := range l.Gateways {
		r := boot.DefaultRoute{Name: l.Name, Route: boot.Route{Destination: anywhere(gw), Gateway: gw.AsSlice()}}
		if gw.Is4() {
			a.Defaultv4Gateway = r
		} else {
			a.Defaultv6Gateway = r
		}
	}
	return a
}

// anywhere returns the network of all addresses of the same family as at.
func anywhere(at netip.Addr) net.IPNet {
	n := at.BitLen() / 8
	return net.IPNet{IP: make(net.IP, n), Mask: make(net.IPMask, n)}
}

// trace makes the kernel write events to a file, and answer calls as the plan says, counting refusals in
// tally. The files stay the caller's. A kernel that is resumed from an image needs this call too.
func (k *kernel) trace(g plan.Guest, tally, to *os.File) error {
	files := []*os.File{to}
	if g.Tell {
		files = []*os.File{tally, to}
	}
	return k.call(boot.ContMgrCreateTraceSession,
		&boot.CreateTraceSessionArgs{Config: session(g), FilePayload: urpc.FilePayload{Files: files}})
}

// mark makes the kernel write a mark after the events so far, by requesting the sink's state.
func (k *kernel) mark() error {
	var all []seccheck.SessionConfig
	return k.ask(boot.ContMgrListTraceSessions, nil, &all)
}

// processes returns the parents of the running processes.
func (k *kernel) processes() (parents map[int]int, err error) {
	id, all := containerID, []*control.Process(nil)
	if err := k.ask(boot.ContMgrProcesses, &id, &all); err != nil {
		return nil, fault.Wrap(err, "list the sandbox's processes")
	}
	parents = map[int]int{}
	for _, p := range all {
		parents[int(p.PID)] = int(p.PPID)
	}
	return parents, nil
}

// pause and unpause stop and resume every process.
func (k *kernel) pause() error   { return k.call(boot.ContMgrPause, nil) }
func (k *kernel) unpause() error { return k.call(boot.ContMgrResume, nil) }

// save writes a memory image to files, which stay the caller's.
func (k *kernel) save(files []*os.File) error {
	err := k.call(boot.ContMgrCheckpoint, &control.SaveOpts{
		FilePayload: urpc.FilePayload{Files: files}, HavePagesFile: true, Resume: true,
		Metadata: statefile.CompressionLevelNone.ToMetadata(), AppMFExcludeCommittedZeroPages: true,
	})
	if fault.Is(err, fault.Internal) {
		return fault.New(fault.Unsupported, "gVisor cannot save a resource that the processes use").Because(err).
			WithHint("for example an open, deleted named pipe; save files only: coppice snapshot create NAME -m " +
				"MSG; " +
				"or stop the processes before a rewind: coppice stop NAME")
	}
	return fault.Wrap(err, "write the memory image")
}

// written reports whether processes can write files through shared mappings, which leaves no trace in the files' times.
// The files are mapped in the processes in which gVisor runs the sandbox's code, under other paths than those of the
// sandbox, so a single mapping makes all files suspect. The files that gVisor itself shares with these processes are in
// memory.
func (k *kernel) written() initlink.Mapped {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return initlink.Mapped{All: true}
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	m := procs.WrittenBy(pids, nil, true)
	return initlink.Mapped{All: m.All || len(m.Inodes) > 0}
}
