//go:build linux && (amd64 || arm64)

package box

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/guest"
	"github.com/coppice-dev/coppice/internal/box/plan"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/program"
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
//
// The image has the memory of its init, and not the code: init is the program that it runs,
// which it goes on with alone (plan.Config.Init). The caller closes it. What has to be the
// same where the image is resumed are facts, those of MemoryFacts: a box that another build of
// Coppice has started is Version where they are others.
func (f *Frozen) Save(ctx context.Context, dir string, facts map[string]string) (init *os.File, err error) {
	if err := wire.WriteJSON(f.conn, frameSave, saveRequest{Dir: dir, Facts: facts}); err != nil {
		return nil, unavailable(err)
	}
	if err := reply(ctx, f.conn, nil); err != nil {
		return nil, err
	}
	fd, err := receiveFD(f.conn)
	if err != nil {
		return nil, fault.Wrap(err, "take the image's init over")
	}
	return os.NewFile(uintptr(fd), "init"), nil
}

// saveRequest is what Save asks for: an image of which Facts are true. A keeper from before
// inits were kept knows Build in their place, and refuses the one that there is none of.
type saveRequest struct {
	Dir   string            `json:"dir"`
	Facts map[string]string `json:"facts"`
	Build string            `json:"build"`
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
// resumed with its init.
func MemoryFacts(programs *program.Set) (map[string]string, error) {
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return nil, fault.Wrap(err, "read what the processor can do")
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
		"arch": runtime.GOARCH, "page": strconv.Itoa(os.Getpagesize()), "protocol": strconv.Itoa(plan.Protocol), "cpu": cpuFeatures(cpu),
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

// save writes a memory image where the caller of freeze says, and answers with the program
// that is its init.
func (k *keeper) save(conn *net.UnixConn, payload []byte) error {
	if k.config.Tier != plan.TierGvisor {
		return fault.New(fault.Unsupported, "the memory of a sandbox of tier %s cannot be saved", k.config.Tier).
			WithHint("make a sandbox that can: coppice create --tier gvisor; or fork this one into it: coppice fork NAME --tier gvisor")
	}
	var q saveRequest
	if err := json.Unmarshal(payload, &q); err != nil || !filepath.IsAbs(q.Dir) {
		return fault.New(fault.Internal, "a memory image at %q", payload)
	}
	if !maps.Equal(k.config.MemoryFacts, q.Facts) {
		return fault.New(fault.Version, "the sandbox was started by another build of coppice, whose memory this one could not resume").
			WithHint("start it anew: coppice stop %s", k.config.Name)
	}
	init, err := k.openInner()
	if err != nil {
		return err
	}
	defer init.Close()
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
	if err := wire.WriteJSON(conn, frameReply, nil); err != nil {
		return err
	}
	_, _, err = conn.WriteMsgUnix([]byte{0}, unix.UnixRights(int(init.Fd())), nil)
	return err
}
