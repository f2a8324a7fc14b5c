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

// ImageFiles are the files of a memory image, in one directory.
var ImageFiles = initlink.ImageFiles

// ResealStep is something that was done to make a box another one. Err says why it failed.
type ResealStep = initlink.ResealStep

// Save writes a memory image of a frozen box into dir, which exists and has none. The
// processes stand still as before. Only boxes of tier gvisor can be saved.
//
// The image has the memory of its init, and not the code: init is the program that it runs,
// which it goes on with alone (plan.Config.Init). The caller closes it. What has to be the
// same where the image is resumed are facts, those of MemoryFacts: a box that another build of
// Coppice has started is Version where they are others.
func (f *Frozen) Save(ctx context.Context, dir string, facts map[string]string) (init *os.File, err error) {
	if err := wire.WriteJSON(f.conn, protocol.FrameSave, protocol.SaveRequest{Dir: dir, Facts: facts}); err != nil {
		return nil, unavailable(err)
	}
	if err := reply(ctx, f.conn, nil); err != nil {
		return nil, err
	}
	fd, err := receiveFD(f.conn)
	if err != nil {
		return nil, fault.Wrap(err, "receive the image's init")
	}
	return os.NewFile(uintptr(fd), "init"), nil
}

// Reseal gives a box that was started with an image an identity of its own: host name,
// machine id, randomness. Nothing is done after a step that failed, which the error names.
func (b *Box) Reseal(ctx context.Context, r Reseal) (steps []ResealStep, err error) {
	var done initlink.Resealed
	if err := anotherVersion(b.call(ctx, protocol.Call{Op: protocol.OpReseal, Reseal: &r}, &done)); err != nil {
		return nil, err
	}
	if done.Err != nil {
		return done.Steps, (*protocol.Failure)(done.Err).Fault()
	}
	return done.Steps, nil
}

// Release opens the gate of a box that was started with an image, and has the inside trust
// it. A box without an image, or that was released, stays as it is.
func (b *Box) Release(ctx context.Context) error {
	return anotherVersion(b.call(ctx, protocol.Call{Op: protocol.OpRelease}, nil))
}

// Pause suspends every process until Resume, which may be called by a later daemon. Commands
// are refused meanwhile, captures are not. A box that is paused stays so. Tier workspace
// is Unsupported.
func (b *Box) Pause(ctx context.Context) error {
	return anotherVersion(b.call(ctx, protocol.Call{Op: protocol.OpPause}, nil))
}

// Resume ends a Pause; a box that moves stays so.
func (b *Box) Resume(ctx context.Context) error {
	return anotherVersion(b.call(ctx, protocol.Call{Op: protocol.OpResume}, nil))
}

// MemoryFacts are what has to be the same where a memory image is taken and where it is
// resumed with its init.
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

// BuildFacts are what has to be the same besides for an image whose init was not kept: it
// goes on with that of the very build that took it.
func BuildFacts() (map[string]string, error) {
	build, err := buildID("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	return map[string]string{"build": build, "plan": strconv.Itoa(plan.Version)}, nil
}

// buildID identifies a program that Go built, by what is in it (cmd/go/internal/work,
// buildid.go).
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

// cpuFeatures is a digest of what /proc/cpuinfo says that the first processor can do.
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
