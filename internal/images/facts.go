//go:build linux

package images

import (
	"maps"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/memory"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

const (
	// factHost is the state of the host's files below a sandbox that shows them.
	factHost = "host"
	// factProtocol is a number of package plan: see Host.Understands.
	factProtocol = "protocol"
)

// facts returns the properties that must be the same where an image of a sandbox is taken and resumed.
func (m *Images) facts(rec *meta.Sandbox) (map[string]string, error) {
	facts, err := m.config.Host.MemoryFacts()
	if err != nil {
		return nil, fault.Wrap(err, "read the host's properties that a memory image depends on")
	}
	facts = maps.Clone(facts)
	if rec.Host {
		facts[factHost] = m.config.Host.Print()
	}
	return facts, nil
}

// factsFor returns the current facts to compare with those of an image. An image whose init was stored resumes
// with that init; another with that of this build.
func (m *Images) factsFor(rec *meta.Sandbox, kept *timeline.Memory) (map[string]string, error) {
	facts, err := m.facts(rec)
	if err != nil {
		return nil, err
	}
	if init := kept.Facts[memory.InitFact]; init != "" {
		facts[memory.InitFact] = init
		if client := kept.Facts[memory.ClientFact]; client != "" {
			facts[memory.ClientFact] = client
		}
		if p := kept.Facts[factProtocol]; m.config.Host.Understands(p) {
			facts[factProtocol] = p
		}
		return facts, nil
	}
	build, err := m.config.Host.BuildFacts()
	if err != nil {
		return nil, fault.Wrap(err, "read the host's properties that a memory image depends on")
	}
	maps.Copy(facts, build)
	return facts, nil
}

// factName returns the name of a fact for messages.
func factName(fact string) string {
	switch fact {
	case "gvisor":
		return "the version of gVisor"
	case "cpu":
		return "the feature set of the processor"
	case "arch":
		return "the processor model"
	case "page":
		return "the page size"
	case "build":
		return "the build of Coppice, whose init is in the image and was not stored with it,"
	case "plan":
		return "the version of Coppice's plan of a sandbox"
	case memory.ClientFact:
		return "the program coppice in the sandbox"
	case factProtocol:
		return "the protocol between Coppice and the init in an image"
	case factHost:
		return "the host's own files, which the sandbox shows"
	}
	return fact
}

// differs returns the first fact that has changed; "" if there is none.
func differs(then, now map[string]string) (what, was, is string) {
	for _, k := range slices.Sorted(maps.Keys(then)) {
		if now[k] != then[k] {
			return factName(k), then[k], now[k]
		}
	}
	return "", "", ""
}

// Resumable returns the memory of a snapshot, if its processes can be resumed here. NotFound: the snapshot has no
// memory; Unsupported: no sandbox of that tier can be; Conflict: the host is different.
func (m *Images) Resumable(rec *meta.Sandbox, snap timeline.Snapshot) (*timeline.Memory, error) {
	if snap.Memory == nil {
		return nil, fault.New(fault.NotFound, "snapshot %s has no memory", snap.ID).
			WithHint("list those that have: coppice log %s; take one: coppice snapshot create --memory -m MSG %s", rec.Name,
				rec.Name)
	}
	if !m.Keeps(rec.Tier) {
		return nil, fault.New(fault.Unsupported, "cannot resume the processes of snapshot %s in tier %s",
			snap.ID, rec.Tier).
			WithHint("restore its files alone: coppice rewind --files-only %s %s", rec.Name, snap.ID)
	}
	now, err := m.factsFor(rec, snap.Memory)
	if err != nil {
		return nil, err
	}
	if what, was, is := differs(snap.Memory.Facts, now); what != "" {
		return nil, fault.New(fault.Conflict,
			"cannot resume the processes of snapshot %s on this host: %s was %q when their memory was saved, and is %q", snap.ID,
			what, was, is).
			WithHint("restore its files alone: coppice rewind --files-only %s %s", rec.Name, snap.ID)
	}
	return snap.Memory, nil
}
