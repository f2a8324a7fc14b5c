//go:build linux && (amd64 || arm64)

// Command alone measures plain gVisor, in separate namespaces: without a monitor, an init, a gate, a history or a
// daemon. Package bench starts it; it is also the binary that gVisor starts its own processes from. It imports
// only gVisor.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/subcommands"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"
)

// times is the output in JSON, in nanoseconds.
type times struct {
	Starts []time.Duration `json:"starts"` // create a container with true as its first process, and destroy it
	Execs  []time.Duration `json:"execs"`  // start true in a live container, and wait for it
}

func main() {
	if strings.HasPrefix(os.Args[0], "runsc-") || os.Args[0] == "/proc/self/exe" {
		commands := map[util.SubCommand]string{}
		for _, c := range []util.SubCommand{new(sentrycmd.Boot), new(cmd.Gofer), new(sentrycmd.Umount)} {
			commands[c] = "internal"
		}
		cli.Run(nil, commands, []subcommands.Command{})
		return
	}
	err := errors.New("usage: alone DIR STARTS EXECS")
	if len(os.Args) == 4 {
		err = run(os.Args[1], os.Args[2], os.Args[3], os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "alone:", err)
		os.Exit(1)
	}
}

// run works in dir, measures the given numbers of starts and execs, and writes the times to out.
func run(dir, startsText, execsText string, out io.Writer) error {
	starts, serr := strconv.Atoi(startsText)
	execs, eerr := strconv.Atoi(execsText)
	if err := errors.Join(serr, eerr); err != nil {
		return err
	}
	log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: io.Discard}})
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to itself: %w", err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	ours := [3]*os.File{os.Stdin, os.Stdout, os.Stderr}
	os.Stdin, os.Stdout, os.Stderr = null, null, null // gVisor passes them to a container
	defer func() { os.Stdin, os.Stdout, os.Stderr = ours[0], ours[1], ours[2] }()
	flags := flag.NewFlagSet("gvisor", flag.ContinueOnError)
	config.RegisterFlags(flags)
	if err := flags.Parse(
		[]string{"--root=" + dir, "--platform=systrap", "--ignore-cgroups", "--network=none", "--overlay2=none",
			"--file-access=shared", "--host-settings=ignore"}); err != nil {
		return err
	}
	conf, err := config.NewFromFlags(flags)
	if err != nil {
		return err
	}
	var all times
	if all.Starts, err = timeStarts(conf, filepath.Join(dir, "once"), starts); err != nil {
		return err
	}
	if all.Execs, err = timeExecs(conf, filepath.Join(dir, "live"), execs, null); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(all)
}

// timeStarts starts n containers in sequence.
func timeStarts(conf *config.Config, dir string, n int) (ds []time.Duration, err error) {
	args, err := bundle(dir, "true")
	if err != nil {
		return nil, err
	}
	args.Attached = true
	for i := range n {
		t := time.Now()
		args.ID = fmt.Sprintf("once-%06d", i)
		if err := succeeded(container.Run(conf, args)); err != nil {
			return nil, fmt.Errorf("run a container: %w", err)
		}
		ds = append(ds, time.Since(t))
	}
	return ds, nil
}

// timeExecs runs n commands in one container, with null as their descriptors.
func timeExecs(conf *config.Config, dir string, n int, null *os.File) (ds []time.Duration, err error) {
	args, err := bundle(dir, "sleep", "infinity")
	if err != nil {
		return nil, err
	}
	args.ID = "live-000000"
	c, err := container.New(conf, args)
	if err != nil {
		return nil, fmt.Errorf("make a container: %w", err)
	}
	defer func() { err = errors.Join(err, c.Destroy()) }()
	if err := c.Start(conf); err != nil {
		return nil, fmt.Errorf("start a container: %w", err)
	}
	for range n {
		t := time.Now()
		pid, err := c.Execute(conf, &control.ExecArgs{
			Argv: []string{"true"}, Envv: args.Spec.Process.Env, WorkingDirectory: "/",
			FilePayload: control.NewFilePayload(map[int]*os.File{0: null, 1: null, 2: null}, nil),
		})
		if err != nil {
			return nil, fmt.Errorf("start a command: %w", err)
		}
		if err := succeeded(c.WaitPID(pid)); err != nil {
			return nil, fmt.Errorf("wait for a command: %w", err)
		}
		ds = append(ds, time.Since(t))
	}
	return ds, nil
}

// succeeded returns err, or an error if the exit code is not 0.
func succeeded(ws unix.WaitStatus, err error) error {
	if err == nil && ws != 0 {
		return fmt.Errorf("wait status %#x", uint32(ws))
	}
	return err
}

// bundle creates the bundle of containers with a read-only view of the host's files.
func bundle(dir string, cmd ...string) (a container.Args, err error) {
	a.BundleDir = dir
	a.Spec = &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: "/", Readonly: true},
		Process: &specs.Process{Args: cmd, Cwd: "/", Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}},
		},
		Linux: &specs.Linux{
			UIDMappings: []specs.LinuxIDMapping{{Size: 1}}, GIDMappings: []specs.LinuxIDMapping{{Size: 1}},
			Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.UserNamespace}},
		},
	}
	b, err := json.Marshal(a.Spec)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600)
	}
	return a, err
}
