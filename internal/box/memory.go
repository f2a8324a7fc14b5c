//go:build linux && (amd64 || arm64)

package box

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"os"
	"runtime"
	"slices"
	"strconv"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program"
)

// ImageFiles lists the names of the files of a memory image, which are in one directory.
var ImageFiles = initlink.ImageFiles

// RekeyStep is one step of a Rekey. Err says why the step failed.
type RekeyStep = initlink.RekeyStep

// Save writes a memory image of a frozen box into dir, which must exist and hold no image. The processes stay
// frozen. Only boxes of tier gvisor can be saved.
//
// The image has the memory of the box's init but not its code: init is the program of that init, the only one
// that the image can be resumed with (plan.Config.Init), and client likewise the program coppice that the box shows
// (plan.Config.ImageClient); it is nil if the box shows none. The caller closes them. facts are the MemoryFacts that
// must be the same where the image is resumed. A Version fault says that another build of Coppice, with other facts,
// has started the box.
func (f *Frozen) Save(ctx context.Context, dir string, facts map[string]string) (init, client *os.File, err error) {
	if err := wire.WriteJSON(f.conn, protocol.FrameSave, protocol.SaveRequest{Dir: dir, Facts: facts}); err != nil {
		return nil, nil, unavailable(err)
	}
	var r protocol.SaveReply
	if err := reply(ctx, f.conn, &r); err != nil {
		return nil, nil, err
	}
	fd, err := receiveFD(f.conn)
	if err != nil {
		return nil, nil, fault.Wrap(err, "receive the image's init")
	}
	init = os.NewFile(uintptr(fd), "init")
	if !r.Client {
		return init, nil, nil
	}
	if fd, err = receiveFD(f.conn); err != nil {
		init.Close()
		return nil, nil, fault.Wrap(err, "receive the image's coppice")
	}
	return init, os.NewFile(uintptr(fd), "coppice"), nil
}

// Rekey gives a box that was started from an image its own identity: host name, machine id, randomness. It
// stops at the first step that fails; the error names that step.
func (b *Box) Rekey(ctx context.Context, r Rekey) (steps []RekeyStep, err error) {
	var done initlink.Rekeyed
	if err := anotherVersion(b.call(ctx, protocol.Call{Op: protocol.OpRekey, Rekey: &r}, &done)); err != nil {
		return nil, err
	}
	if done.Err != nil {
		return done.Steps, (*protocol.Failure)(done.Err).Fault()
	}
	return done.Steps, nil
}

// Release opens the gate of a box that was started from an image, and makes the inside trust it. It has no
// effect on a box without an image or one that was released before.
func (b *Box) Release(ctx context.Context) error {
	return anotherVersion(b.call(ctx, protocol.Call{Op: protocol.OpRelease}, nil))
}

// Pause suspends every process until Resume, which a later daemon may call. Meanwhile the box refuses
// commands, but not captures. Pausing a paused box has no effect. Tier workspace returns Unsupported.
func (b *Box) Pause(ctx context.Context) error {
	return anotherVersion(b.call(ctx, protocol.Call{Op: protocol.OpPause}, nil))
}

// Resume ends a Pause. It has no effect on a box that is not paused.
func (b *Box) Resume(ctx context.Context) error {
	return anotherVersion(b.call(ctx, protocol.Call{Op: protocol.OpResume}, nil))
}

// MemoryFacts returns the facts that must be the same where a memory image is taken and where it is resumed
// with its init.
func MemoryFacts(programs *program.Set) (map[string]string, error) {
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return nil, fault.Wrap(err, "read the features of the processor")
	}
	sentry, err := programs.File(program.Sentry)
	if err != nil {
		return nil, err
	}
	gvisor, err := program.ModuleVersion(sentry, "gvisor.dev/gvisor")
	if err != nil {
		return nil, err
	}
	return map[string]string{
		"arch": runtime.GOARCH, "page": strconv.Itoa(os.Getpagesize()), "protocol": strconv.Itoa(plan.Protocol),
		"cpu":    cpuFeatures(cpu),
		"gvisor": cmp.Or(gvisor, "unknown"),
	}, nil
}

// BuildFacts returns the facts that must also match for an image whose init was not kept: such an image is resumed with
// the init of the very build that took it.
func BuildFacts() (map[string]string, error) {
	build, err := buildID("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	return map[string]string{"build": build, "plan": strconv.Itoa(plan.Version)}, nil
}

// buildID identifies a program that Go built by the build ID in it (cmd/go/internal/work, buildid.go).
func buildID(path string) (string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", fault.Wrap(err, "read the build information of this program")
	}
	defer f.Close() //nolint:errcheck // it was read
	note := f.Section(".note.go.buildid")
	if note == nil {
		return "", fault.New(fault.Unsupported,
			"this program lacks build information, which a memory image must match").
			WithHint("build it with: make build")
	}
	b, err := note.Data()
	if err != nil {
		return "", fault.Wrap(err, "read the build information of this program")
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8]), nil
}

// cpuFeatures returns a digest of the features that /proc/cpuinfo lists for the first processor.
func cpuFeatures(cpuinfo []byte) string {
	for line := range bytes.Lines(cpuinfo) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		if k := string(bytes.TrimSpace(key)); k == "flags" || k == "Features" {
			names := bytes.Fields(value)
			slices.SortFunc(names, bytes.Compare)
			sum := sha256.Sum256(bytes.Join(names, []byte(" ")))
			return hex.EncodeToString(sum[:8])
		}
	}
	return ""
}
