//go:build linux && (amd64 || arm64)

package oci

// The part of config.json that is used (github.com/opencontainers/runtime-spec, config.md). The types of that module
// are not used: PID 1 of every sandbox is the same program as the conductor, and contains few modules.

type spec struct {
	Version string  `json:"ociVersion"`
	Root    root    `json:"root"`
	Process process `json:"process"`
	Mounts  []mount `json:"mounts"`
	Linux   linux   `json:"linux"`
}

type root struct {
	Path string `json:"path"`
}

type process struct {
	Args            []string     `json:"args"`
	Cwd             string       `json:"cwd"`
	Env             []string     `json:"env"`
	User            user         `json:"user"`
	NoNewPrivileges bool         `json:"noNewPrivileges"`
	Capabilities    capabilities `json:"capabilities"`
}

// user is root: the zero value.
type user struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

type capabilities struct {
	Bounding    []string `json:"bounding"`
	Effective   []string `json:"effective"`
	Permitted   []string `json:"permitted"`
	Inheritable []string `json:"inheritable"`
	Ambient     []string `json:"ambient"`
}

type mount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options"`
}

type linux struct {
	Namespaces    []namespace `json:"namespaces"`
	MaskedPaths   []string    `json:"maskedPaths"`
	ReadonlyPaths []string    `json:"readonlyPaths"`
	Seccomp       profile     `json:"seccomp"`
}

type namespace struct {
	Type string `json:"type"`
}

type profile struct {
	DefaultAction string   `json:"defaultAction"`
	Architectures []string `json:"architectures"`
	Syscalls      []calls  `json:"syscalls"`
}

type calls struct {
	Names    []string   `json:"names"`
	Action   string     `json:"action"`
	ErrnoRet uint       `json:"errnoRet"`
	Args     []argument `json:"args,omitempty"`
}

type argument struct {
	Index    uint   `json:"index"`
	Value    uint64 `json:"value"`
	ValueTwo uint64 `json:"valueTwo"`
	Op       string `json:"op"`
}
