//go:build linux && (amd64 || arm64)

package keeper

import (
	"encoding/json"
	"maps"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// save writes a memory image to the directory that the caller of freeze specifies, and answers with its
// programs.
func (k *keeper) save(conn *net.UnixConn, payload []byte) error {
	if k.config.Tier != plan.TierGvisor {
		return fault.New(fault.Unsupported, "cannot save the memory of a sandbox of tier %s", k.config.Tier).
			WithHint("create one whose memory can: coppice create --tier gvisor; or fork this one into it: coppice fork NAME " +
				"--tier gvisor")
	}
	var q protocol.SaveRequest
	if err := json.Unmarshal(payload, &q); err != nil || !filepath.IsAbs(q.Dir) {
		return fault.New(fault.Internal, "invalid memory image request %q", payload)
	}
	if !maps.Equal(k.config.MemoryFacts, q.Facts) {
		return fault.New(fault.Version,
			"cannot save the memory: the sandbox was started by another build of coppice").
			WithHint("restart it: coppice stop %s", k.config.Name)
	}
	init, err := k.inner.open(k.config.Name)
	if err != nil {
		return err
	}
	defer init.Close()
	programs := []int{int(init.Fd())}
	if k.config.Client {
		client, err := k.client.open(k.config.Name)
		if err != nil {
			return err
		}
		defer client.Close()
		programs = append(programs, int(client.Fd()))
	}
	var fds []int
	for _, name := range initlink.ImageFiles {
		f, err := os.OpenFile(filepath.Join(q.Dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return fault.Wrap(err, "create the memory image")
		}
		defer f.Close()
		fds = append(fds, int(f.Fd()))
	}
	var s initlink.Saved
	if err := k.askWith(initlink.MsgSave, nil, &s, fds...); err != nil {
		return err
	}
	if s.Err != nil {
		return (*protocol.Failure)(s.Err).Fault()
	}
	if err := wire.WriteJSON(conn, protocol.FrameReply, protocol.SaveReply{Client: k.config.Client}); err != nil {
		return err
	}
	for _, fd := range programs {
		if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil); err != nil {
			return err
		}
	}
	return nil
}
