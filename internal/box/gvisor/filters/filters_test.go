//go:build linux && amd64 && !race && !cgo

package filters

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	_ "gvisor.dev/gvisor/pkg/sentry/platform/systrap"
	sentry "gvisor.dev/gvisor/runsc/boot/filter/config"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter/config"
)

var update = flag.Bool("update", false, "write ready_amd64.go anew")

// inNamespace says that this process is to be number 1 and to make the programs.
const inNamespace = "COPPICE_TEST_FILTERS"

// The programs are what this version of gVisor compiles.
func TestGvisorProgramsAreItsOwn(t *testing.T) {
	if os.Getenv(inNamespace) != "" {
		if err := json.NewEncoder(os.NewFile(3, "programs")).Encode(compile(t)); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Parallel()
	made := compiled(t)
	for _, p := range slices.Concat(made.Sentry, made.Gofer) {
		if len(p.Bytecode32) < 400 || len(p.VarOffsets) == 0 {
			t.Fatalf("%s has %d words and %d variables", p.Name, len(p.Bytecode32), len(p.VarOffsets))
		}
	}
	want := source(t, made)
	if *update {
		if err := os.WriteFile("ready_amd64.go", want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("ready_amd64.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("ready_amd64.go is not what gVisor compiles: go test ./internal/box/gvisor/filters -update")
	}
}

// programs are those of gVisor's two processes.
type programs struct {
	Sentry, Gofer []precompiledseccomp.Program
}

// compiled has a process that is number 1 make them.
func compiled(t *testing.T) (p programs) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestGvisorProgramsAreItsOwn$")
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		w.Close()
		t.Skipf("needs pid namespaces: %v", err)
	}
	w.Close()
	decoded := json.NewDecoder(r).Decode(&p)
	if err := cmd.Wait(); err != nil || decoded != nil {
		t.Fatalf("%v, %v: %s", err, decoded, out.String())
	}
	return p
}

// compile makes the programs for this process.
func compile(t *testing.T) (p programs) {
	t.Helper()
	if os.Getpid() != 1 {
		t.Fatalf("this is process %d", os.Getpid())
	}
	build := func(rules, denied seccomp.SyscallRules, o seccomp.ProgramOptions) *seccomp.Program {
		return &seccomp.Program{Options: o, RuleSets: []seccomp.RuleSet{{Rules: denied.Copy()}, {Rules: rules.Copy(), Action: seccomp.Allow}}}
	}
	systrap, err := platform.Lookup("systrap")
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range systrap.PrecompiledSeccompInfo() {
		opt := sentry.Options{Platform: info, HostFilesystem: true}
		// The number of the process is no variable that could be set: it is 1.
		values := opt.Vars()
		var names []string
		for n := range values {
			if n != "self_pid_high32bits" && n != "self_pid_low32bits" {
				names = append(names, n)
			}
		}
		made, err := precompiledseccomp.Precompile(opt.ConfigKey(), names, func(v precompiledseccomp.Values) *seccomp.Program {
			opt := opt
			opt.ControllerFD, opt.Platform = v["controller_fd"], variable{info, v}
			rules, denied := sentry.Rules(opt)
			return build(rules, denied, sentry.SeccompOptions(opt))
		})
		if err != nil {
			t.Fatal(err)
		}
		made.VarOffsets["self_pid_high32bits"], made.VarOffsets["self_pid_low32bits"] = nil, nil
		p.Sentry = append(p.Sentry, made)
	}
	opt := gofer.Options{DirectFS: true}
	rules, denied := gofer.Rules(opt)
	made, _, err := build(rules, denied, seccomp.ProgramOptions{}).Build()
	if err != nil {
		t.Fatal(err)
	}
	p.Gofer = append(p.Gofer, precompiledseccomp.Program{
		Name: opt.ConfigKey(), Bytecode32: words(made),
		VarOffsets: map[string][]int{"self_pid_high32bits": nil, "self_pid_low32bits": nil},
	})
	return p
}

// variable is a platform with variables of ours.
type variable struct {
	platform.SeccompInfo
	all precompiledseccomp.Values
}

func (v variable) Variables() precompiledseccomp.Values {
	vars := precompiledseccomp.Values{}
	for n := range v.SeccompInfo.Variables() {
		vars[n] = v.all[n]
	}
	return vars
}

// words are instructions as precompiledseccomp has them.
func words(p []bpf.Instruction) (all []uint32) {
	for four := range slices.Chunk(bpf.ToBytecode(p), 4) {
		all = append(all, binary.NativeEndian.Uint32(four))
	}
	return all
}

// source is ready_amd64.go.
func source(t *testing.T, p programs) []byte {
	t.Helper()
	var b bytes.Buffer
	fmt.Fprint(&b, `// Code generated by go test ./internal/box/gvisor/filters -update. DO NOT EDIT.

//go:build linux && amd64

package filters

import "gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"

`)
	write(&b, "sentryReady", p.Sentry)
	write(&b, "goferReady", p.Gofer)
	out, err := format.Source(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func write(b *bytes.Buffer, name string, all []precompiledseccomp.Program) {
	fmt.Fprintf(b, "func %s() []precompiledseccomp.Program {\nreturn []precompiledseccomp.Program{\n", name)
	for _, p := range all {
		fmt.Fprintf(b, "{\nName: %s,\nVarOffsets: map[string][]int{\n", strconv.Quote(p.Name))
		var names []string
		for n := range p.VarOffsets {
			names = append(names, n)
		}
		slices.Sort(names)
		for _, n := range names {
			fmt.Fprintf(b, "%q: %#v,\n", n, p.VarOffsets[n])
		}
		fmt.Fprint(b, "},\nBytecode32: []uint32{")
		for i, w := range p.Bytecode32 {
			if i%12 == 0 {
				b.WriteByte('\n')
			}
			fmt.Fprintf(b, "%#x,", w)
		}
		fmt.Fprint(b, "\n},\n},\n")
	}
	fmt.Fprint(b, "}\n}\n\n")
}
