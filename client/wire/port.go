package wire

import "time"

// Port is a TCP port that a process of a sandbox listens on.
type Port struct {
	Port    int    `json:"port"`              // its number
	Address string `json:"address"`           // at which it listens: 0.0.0.0 and :: are all
	PID     int    `json:"pid,omitempty"`     // of a process that listens; 0 where that cannot be told
	Program string `json:"program,omitempty"` // name of that process
}

// PortsResult is the ports of a sandbox, by number.
type PortsResult struct {
	Ports []Port `json:"ports"`          // by number
	More  int    `json:"more,omitempty"` // how many there was no room for
}

// PreviewRequest asks for a link to a port.
type PreviewRequest struct {
	// lifetime of the link; 0 is an hour, between a second and a week
	TTLMS int64 `json:"ttl_ms,omitempty"`
}

// PreviewResult is a link to a port. The link gives access to the port until it expires.
type PreviewResult struct {
	URL     string    `json:"url"`     // the link
	Expires time.Time `json:"expires"` // when it expires
}
