//go:build linux && (amd64 || arm64)

package keeper

import (
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// isPaused returns the state of the box when it was paused, or nil if it is not paused.
func (k *keeper) isPaused() *protocol.FrozenReply {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.paused
}

// takeFreezing takes the token of freezes.
func (k *keeper) takeFreezing() error {
	select {
	case k.freezing <- struct{}{}:
		return nil
	case <-k.stop:
		return fault.New(fault.Unavailable, "the sandbox is being stopped")
	case <-k.over:
		return fault.New(fault.Unavailable, "the sandbox's init has exited")
	}
}

// pause freezes the box until resume.
func (k *keeper) pause() error {
	if k.config.Tier == plan.TierWorkspace {
		return fault.New(fault.Unsupported,
			"cannot pause a sandbox of tier workspace: its commands are processes of the host").
			WithHint("use --tier process, or stop them: coppice process kill --signal STOP")
	}
	if err := k.takeFreezing(); err != nil {
		return err
	}
	defer func() { <-k.freezing }()
	if k.isPaused() != nil {
		return nil
	}
	r, err := k.standStill()
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.paused = &r
	return nil
}

// resume ends a pause.
func (k *keeper) resume() error {
	if k.isPaused() == nil {
		return nil
	}
	if err := k.takeFreezing(); err != nil {
		return err
	}
	defer func() { <-k.freezing }()
	k.mu.Lock()
	before := k.paused
	k.paused = nil
	k.mu.Unlock()
	if before == nil {
		return nil
	}
	return k.goOn()
}

// errPaused returns the error for operations that a paused box refuses.
func errPaused() error {
	return fault.New(fault.Conflict, "the sandbox is paused").WithHint("resume it: coppice process resume NAME")
}
