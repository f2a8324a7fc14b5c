package policy

import (
	"path"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/coppice-dev/coppice/internal/fault"
)

// FileVersion is the version of the files that Parse reads.
const FileVersion = 1

// Said is a value and its origin.
type Said[T any] struct {
	Value T
	At    Origin
}

// Tier is how processes are confined.
type Tier string

// The tiers, from the weakest to the strongest.
const (
	Workspace   Tier = "workspace"
	Process     Tier = "process"
	Supervised  Tier = "supervised"
	Container   Tier = "container"
	GVisor      Tier = "gvisor"
	MicroVM     Tier = "microvm"
	defaultTier      = Process
)

// Tiers returns the tiers, from the weakest to the strongest.
func Tiers() []Tier { return []Tier{Workspace, Process, Supervised, Container, GVisor, MicroVM} }

func (t Tier) rank() int { return slices.Index(Tiers(), t) }

// Touch is the response when a decoy is opened, or a token is sent to the gate.
type Touch string

// The values of Touch. In any case the touch is an event, and the token is not sent.
const (
	TouchRecord Touch = "record" // record the touch only
	TouchStop   Touch = "stop"   // all processes of the sandbox are killed
)

// Mount shows a path of the host at a path inside.
type Mount struct {
	From, To Path
	Write    bool // writes inside change the host, without history
}

// Access is the network section of a file.
type Access struct {
	Mode        Net
	Presets     []Said[string]
	Allow, Deny []Rule
	Ask         *Said[bool]
}

// Document is the content of one file. An absent setting is nil, which differs from an empty one: an empty list
// overrides.
type Document struct {
	Name     string
	Tier     *Said[Tier]
	Confine  *Said[Confine]
	Runtime  *Said[string] // OCI runtime of tier container: a name, or an absolute path
	Strong   *Said[bool]   // refuse what the host cannot enforce in full
	Hide     []Said[Path]
	Show     []Said[Path] // built-in hidden paths to show
	ReadOnly []Said[Path]
	Writable []Said[Path] // if not nil, only these can be written
	Mounts   []Said[Mount]
	Decoys   *Said[bool]  // decoys at the built-in hidden paths
	DecoyAt  []Said[Path] // paths of further decoys
	OnTouch  *Said[Touch] // response when a decoy is touched
	Ignore   []Said[Path] // directories without history
	Network  *Said[Access]
	// MemoryFork says whether forks may continue with the memory of processes.
	MemoryFork *Said[MemoryFork]
	Limits     map[string]Said[int64]
	Evidence   *EvidenceSaid // what is recorded as evidence
	Env        map[string]Said[string]
	Secrets    map[string]Said[Secret] // grants, by name

	// Warnings are possible mistakes.
	Warnings Problems
}

// Parse parses a file. name is used in errors, and its directory is the base of relative paths; use an absolute name
// to make a policy. Parsing is strict, and an error lists all problems: see ProblemsOf.
func Parse(name string, data []byte) (Document, error) {
	r := &reader{name: name, dir: path.Dir(name)}
	failed := func(k fault.Kind) (Document, error) {
		if err := r.problems.fault(name, k); err != nil {
			return Document{}, err
		}
		return Document{}, fault.New(fault.Internal, "%s could not be read (no cause reported)", name)
	}
	root := r.root(data)
	if root == nil {
		return failed(fault.Invalid)
	}
	if n := versionOf(root); n != nil && n.ShortTag() == "!!int" && n.Value != "1" {
		r.wrong(n, "this build reads version 1; update Coppice", "unknown version %s of the file", n.Value)
		return failed(fault.Version)
	}
	s := documentShape(r.dir)
	d, ok := s.in(r, root)
	if !ok || len(r.problems) > 0 {
		return failed(fault.Invalid)
	}
	d.Name, d.Warnings = name, r.warnings.sorted()
	return d, nil
}

// versionOf returns the value of the key version, or nil. For an unknown version no other problem is reported.
func versionOf(root *yaml.Node) *yaml.Node {
	for i := 0; root.Kind == yaml.MappingNode && i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == "version" {
			return root.Content[i+1]
		}
	}
	return nil
}
