package daemon

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/command"
	"github.com/coppice-dev/coppice/internal/diskuse"
	"github.com/coppice-dev/coppice/internal/egress"
	"github.com/coppice-dev/coppice/internal/engine"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gitwork"
	"github.com/coppice-dev/coppice/internal/grants"
	"github.com/coppice-dev/coppice/internal/history"
	"github.com/coppice-dev/coppice/internal/httpapi"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/lifetime"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/memory"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/program"
	"github.com/coppice-dev/coppice/internal/restore"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/secret/client"
	"github.com/coppice-dev/coppice/internal/tournament"
	"github.com/coppice-dev/coppice/internal/travel"
	"github.com/coppice-dev/coppice/internal/undo"
	"github.com/coppice-dev/coppice/internal/upkeep"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// engineConfig is the configuration of newEngine.
type engineConfig struct {
	Home             string // absolute, 0700, locked
	RealUID, RealGID int    // outside the daemon's user namespace; -1 if it has none
	UserHome         string // home of the daemon's user, from the environment; "" if unknown
	UserConfig       string // XDG_CONFIG_HOME of the user
	UserPath         string // PATH of the user
	Memory           int64  // maximum memory of the daemon, in bytes
	Log              *slog.Logger
	Lines            *lines       // opened for boxes before they start
	Programs         *program.Set // outlives the engine
}

// whole is an engine with its stores. One Close closes all of them.
type whole struct {
	*engine.Engine
	*audit.Reader           // the engine's
	*events.Bus             // the engine's
	*policies.Policies      // the engine's
	*upkeep.Upkeep          // the engine's
	*egress.Control         // the engine's
	*lifetime.Lifetimes     // the engine's
	*tournament.Tournaments // the engine's
	*gitwork.Git            // the engine's
	*command.Runner         // the engine's
	*history.Histories      // the engine's
	*travel.Travel          // the engine's
	*restore.Restorer       // the engine's
	*grants.Grants          // the engine's
	*diskuse.Meter
	probe  func(context.Context, engine.HostQuestion) (wire.ProbeReport, error)
	db     *meta.DB
	layers *layer.Store
	images *memory.Store
	ledger *ledger.Ledger
}

// store returns the database that stores tokens.
func (w *whole) store() *meta.DB { return w.db }

// Answer implements httpapi.Answers.
func (w *whole) Answer(ctx context.Context, key string) ([]byte, error) { return w.db.Answer(ctx, key) }

// KeepAnswer implements httpapi.Answers.
func (w *whole) KeepAnswer(ctx context.Context, key string, answer []byte, keep time.Duration) error {
	return w.db.KeepAnswer(ctx, key, answer, keep)
}

// Close closes the engine and the stores below it. Monitors continue.
func (w *whole) Close() error {
	return errors.Join(w.Engine.Close(), w.layers.Close(), w.images.Close(), w.ledger.Close(), w.db.Close())
}

// OpenFiles opens live files for the API.
func (w *whole) OpenFiles(ctx context.Context, name string) (httpapi.Files, error) {
	f, err := w.Files.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// OpenPast is Histories.OpenPast for the API.
func (w *whole) OpenPast(ctx context.Context, name, ref string) (httpapi.PastFiles, error) {
	f, err := w.Histories.OpenPast(ctx, name, ref)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// newEngine opens the stores, and creates an engine with them.
func newEngine(ctx context.Context, c engineConfig) (_ backend, err error) {
	var undone undo.Stack
	defer func() { undone.Run(&err) }()
	db, err := meta.Open(ctx, filepath.Join(c.Home, "coppice.db"))
	if err != nil {
		return nil, err
	}
	undone.Push(db.Close)
	layers, err := layer.Open(ctx, vfs.OS(), filepath.Join(c.Home, "layers"))
	if err != nil {
		return nil, err
	}
	undone.Push(layers.Close)
	if layers.RemovesByFiles() {
		if err := raiseFormat(c.Home); err != nil {
			return nil, err
		}
	}
	layers.LimitEntries(limit.Entries(c.Memory))
	images, err := memory.Open(ctx, filepath.Join(c.Home, "memory"), memory.Options{})
	if err != nil {
		return nil, err
	}
	undone.Push(images.Close)
	book, err := openLedger(filepath.Join(c.Home, "ledger"), c.Log)
	if err != nil {
		return nil, err
	}
	undone.Push(book.Close)
	host, err := newHostFacts(c)
	if err != nil {
		return nil, err
	}
	drivers, err := newDrivers(c.Home, host.root, layers)
	if err != nil {
		return nil, err
	}
	repos, err := newRepos(c)
	if err != nil {
		return nil, err
	}
	e, err := engine.Open(ctx, engine.Config{
		Home: c.Home, DB: db, Layers: layers, Memory: images,
		MemoryFacts: func() (map[string]string, error) { return box.MemoryFacts(c.Programs) }, BuildFacts: box.BuildFacts,
		Understands: plan.Understands, Ledger: book, Witness: ledger.NewWitness(c.Home, vfs.OS(), time.Now), Caller: callerOf,
		MayGrant: func(ctx context.Context) error { return auth.From(ctx).Allows(auth.Admin) },
		Drivers:  drivers, Boxes: boxes{programs: c.Programs, caller: host.caller, lines: c.Lines}, Logger: c.Log,
		Broker: client.Dial(c.Home), BrokerSocket: filepath.Join(c.Home, client.LineSocket),
		BootID: host.bootID, ProbeHost: host.probe, HostPrint: host.print, HostImport: host.importOptions,
		Homes: host.homes(c.UserHome), Repos: repos, UID: host.caller.UID, GID: host.caller.GID,
	})
	if err != nil {
		return nil, err
	}
	undone.Release()
	return &whole{
		Engine: e, Reader: e.Records, Bus: e.Feed, Policies: e.Policies, Upkeep: e.Upkeep,
		Control: e.Egress, Lifetimes: e.Lifetimes, Tournaments: e.Tournaments, Git: e.Git, Runner: e.Commands,
		Histories: e.Histories, Travel: e.Travel, Restorer: e.Restorer, Grants: e.Grants,
		Meter: diskuse.New(diskuse.Config{Home: c.Home, DB: db, Unused: e.Upkeep.Unused}),
		probe: host.probe, db: db, layers: layers, images: images, ledger: book,
	}, nil
}

// newDrivers creates the drivers that the home's file system supports. The probe reports why others are
// unavailable.
func newDrivers(home string, root bool, layers *layer.Store) (map[string]rootfs.Driver, error) {
	deps := rootfs.Deps{Home: home, Root: root,
		Materialise: func(ctx context.Context, st rootspec.Stack, dst string) error {
			return layers.Materialise(ctx, layers.View(st), dst)
		}}
	out := map[string]rootfs.Driver{}
	for _, name := range []string{"overlay", "copy", "btrfs"} {
		d, err := rootfs.New(name, deps)
		switch {
		case fault.Is(err, fault.Unsupported):
			continue
		case err != nil:
			return nil, err
		}
		out[name] = d
	}
	return out, nil
}
