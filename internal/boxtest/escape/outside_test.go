//go:build linux && (amd64 || arm64)

package escape_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// ofGvisor are the capabilities that gVisor's processes may have, in their own user namespace: those over files,
// chroot(2) for the process that opens files, and ptrace(2) for the kernel, which has processes of the sandbox. The
// bounding set has no effect with no_new_privs.
const ofGvisor = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_FSETID |
	1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_SYS_PTRACE

// confinedOutside checks the confinement of the sandbox's own kernel on the host, which must hold even if a process
// inside compromises that kernel.
func confinedOutside(t *testing.T, runDir string) {
	conductor := conductorOf(t, runDir)
	kinds := map[string]int{}
	for _, pid := range below(t, conductor) {
		at := fmt.Sprintf("/proc/%d/", pid)
		status, err := os.ReadFile(at + "status")
		if err != nil {
			continue // it has exited
		}
		args, _ := os.ReadFile(at + "cmdline")
		kind, _, _ := strings.Cut(string(args), "\x00")
		kinds[kind]++
		says := map[string]string{}
		for line := range strings.Lines(string(status)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
			says[key] = value
		}
		if says["Seccomp"] != "2" || says["NoNewPrivs"] != "1" {
			t.Errorf("%d, %q: Seccomp %s, NoNewPrivs %s", pid, kind, says["Seccomp"], says["NoNewPrivs"])
		}
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
			if caps, err := strconv.ParseUint(says[set], 16, 64); err != nil || caps&^ofGvisor != 0 {
				t.Errorf("%d, %q: %s is %s", pid, kind, set, says[set])
			}
		}
		for _, ns := range []string{"user", "mnt", "pid", "ipc", "uts"} {
			own, err := os.Readlink(at + "ns/" + ns)
			its, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", conductor, ns))
			ours, err3 := os.Readlink("/proc/self/ns/" + ns)
			if err != nil || err2 != nil || err3 != nil || own == its || own == ours {
				t.Errorf("%d, %q: namespace %s is the conductor's (%s) or ours (%s): %v %v %v", pid, kind, own, its, ours,
					err, err2, err3)
			}
		}
		if kind == "runsc-gofer" { // its root is the sandbox's
			continue
		}
		entries, err := os.ReadDir(at + "root")
		if err != nil {
			t.Errorf("%d, %q: %v", pid, kind, err)
		}
		for _, e := range entries {
			if !slices.Contains([]string{"etc", "proc"}, e.Name()) {
				t.Errorf("%d, %q: its root has %s", pid, kind, e.Name())
			}
		}
		if etc, err := os.ReadDir(at + "root/etc"); err != nil || len(etc) > 0 {
			t.Errorf("%d, %q: its /etc has %v, %v", pid, kind, etc, err)
		}
	}
	if kinds["runsc-gofer"] != 1 || kinds["runsc-sandbox"] == 0 {
		t.Errorf("gVisor's processes are %v", kinds)
	}
}

// conductorOf finds the conductor that writes to the log of a box.
func conductorOf(t *testing.T, runDir string) int {
	t.Helper()
	logs, err := filepath.Glob("/proc/[0-9]*/fd/2")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range logs {
		to, err := os.Readlink(l)
		if err != nil || to != filepath.Join(runDir, "keeper.log") {
			continue
		}
		at := filepath.Dir(filepath.Dir(l))
		if args, _ := os.ReadFile(at + "/cmdline"); strings.HasPrefix(string(args), "coppice-gvisor\x00") {
			pid, err := strconv.Atoi(filepath.Base(at))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatal("no conductor found")
	return 0
}

// below lists the descendants of a process.
func below(t *testing.T, pid int) (all []int) {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lists {
		b, _ := os.ReadFile(l)
		for word := range strings.FieldsSeq(string(b)) {
			child, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			all = append(append(all, child), below(t, child)...)
		}
	}
	return all
}
