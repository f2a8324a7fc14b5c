//go:build linux && (amd64 || arm64)

package box

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/guest"
	"github.com/coppice-dev/coppice/internal/box/plan"
	"github.com/coppice-dev/coppice/internal/fault"
)

// ImageFiles are the files of a memory image, in one directory.
var ImageFiles = guest.ImageFiles

// Reseal is the identity of a box that was resumed from a memory image.
type Reseal struct {
	Hostname string `json:"hostname,omitempty"` // empty: that of its configuration
	Seed     []byte `json:"seed"`               // 32 bytes of fresh randomness
}

// ResealStep is something that was done to make a box another one. Err says why it failed.
type ResealStep = guest.ResealStep

// Save writes a memory image of a frozen box into dir, which exists and has none. The
// processes stand still as before. Only boxes of tier gvisor can be saved.
func (f *Frozen) Save(ctx context.Context, dir string) error {
	build, err := buildID("/proc/self/exe")
	if err != nil {
		return err
	}
	if err := wire.WriteJSON(f.conn, frameSave, saveRequest{Dir: dir, Build: build}); err != nil {
		return unavailable(err)
	}
	return reply(ctx, f.conn, nil)
}

// saveRequest is what Save asks for. A box that another build of Coppice has started has
// that one's init in its memory, so it is not saved as one of this.
type saveRequest struct {
	Dir   string `json:"dir"`
	Build string `json:"build"`
}

// Reseal gives a box that was started with an image an identity of its own: host name,
// machine id, randomness. Nothing is done after a step that failed, which the error names.
func (b *Box) Reseal(ctx context.Context, r Reseal) (steps []ResealStep, err error) {
	var done guest.Resealed
	if err := anotherVersion(b.call(ctx, call{Op: opReseal, Reseal: &r}, &done)); err != nil {
		return nil, err
	}
	if done.Err != nil {
		return done.Steps, (*failure)(done.Err).fault()
	}
	return done.Steps, nil
}

// Release opens the gate of a box that was started with an image, and has the inside trust
// it. A box without an image, or that was released, stays as it is.
func (b *Box) Release(ctx context.Context) error {
	return anotherVersion(b.call(ctx, call{Op: opRelease}, nil))
}

// Pause has every process stand still until Resume, also when this process ends. Commands
// are refused meanwhile, captures are not. A box that is paused stays so. Tier workspace
// is Unsupported.
func (b *Box) Pause(ctx context.Context) error {
	return anotherVersion(b.call(ctx, call{Op: opPause}, nil))
}

// Resume ends a Pause; a box that moves stays so.
func (b *Box) Resume(ctx context.Context) error {
	return anotherVersion(b.call(ctx, call{Op: opResume}, nil))
}

// MemoryFacts are what has to be the same where a memory image is taken and where it is
// resumed.
func MemoryFacts() (map[string]string, error) {
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return nil, fault.Wrap(err, "read what the processor can do")
	}
	build, err := buildID("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	facts := map[string]string{
		"arch": runtime.GOARCH, "build": build, "page": strconv.Itoa(os.Getpagesize()), "plan": strconv.Itoa(plan.Version), "cpu": cpuFeatures(cpu), "gvisor": "unknown",
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		if i := slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == "gvisor.dev/gvisor" }); i >= 0 {
			facts["gvisor"] = info.Deps[i].Version
		}
	}
	return facts, nil
}

// buildID identifies a program that Go built, by what is in it (cmd/go/internal/work,
// buildid.go). Init is that program, and an image has its memory, but not its code.
func buildID(path string) (string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", fault.Wrap(err, "read what this program was built from")
	}
	defer f.Close() //nolint:errcheck // it was read
	note := f.Section(".note.go.buildid")
	if note == nil {
		return "", fault.New(fault.Unsupported, "this program does not say what it was built from, which an image of memory has to match").
			WithHint("build it as the Makefile does: make build")
	}
	b, err := note.Data()
	if err != nil {
		return "", fault.Wrap(err, "read what this program was built from")
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

// save writes a memory image where the caller of freeze says.
func (k *keeper) save(payload []byte) error {
	if k.config.Tier != plan.TierGvisor {
		return fault.New(fault.Unsupported, "the memory of a sandbox of tier %s cannot be saved", k.config.Tier).
			WithHint("make a sandbox that can: coppice create --tier gvisor; or fork this one into it: coppice fork NAME --tier gvisor")
	}
	var q saveRequest
	if err := json.Unmarshal(payload, &q); err != nil || !filepath.IsAbs(q.Dir) {
		return fault.New(fault.Internal, "a memory image at %q", payload)
	}
	switch build, err := buildID("/proc/self/exe"); {
	case err != nil:
		return err
	case build != q.Build:
		return fault.New(fault.Version, "the sandbox was started by another build of coppice, whose memory this one could not resume").
			WithHint("start it anew: coppice stop %s", k.config.Name)
	}
	var fds []int
	for _, name := range ImageFiles {
		f, err := os.OpenFile(filepath.Join(q.Dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return fault.Wrap(err, "make the memory image")
		}
		defer f.Close()
		fds = append(fds, int(f.Fd()))
	}
	var s guest.Saved
	if err := k.askWith(guest.MsgSave, nil, &s, fds...); err != nil {
		return err
	}
	if s.Err != nil {
		return (*failure)(s.Err).fault()
	}
	return nil
}
