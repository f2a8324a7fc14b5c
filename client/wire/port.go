package wire

import "time"

// Port is a TCP port that a process of a sandbox listens on.
type Port struct {
	Port    int    `json:"port"`              // its number
	Address string `json:"address"`           // at which it listens: 0.0.0.0 and :: are all
	PID     int    `json:"pid,omitempty"`     // of a process that listens; 0 where that cannot be told
	Program string `json:"program,omitempty"` // what that process calls itself
}

// PortsResult is the ports of a sandbox, by number.
type PortsResult struct {
	Ports []Port `json:"ports"`          // by number
	More  int    `json:"more,omitempty"` // how many there was no room for
}

// PreviewRequest asks for a link to a port.
type PreviewRequest struct {
	// for how long the link is good; 0 is an hour, the least is a second and the most a week
	TTLMS int64 `json:"ttl_ms,omitempty"`
}

// PreviewResult is a link to a port for people: whoever has it may use the port
// until it expires.
type PreviewResult struct {
	URL     string    `json:"url"`     // the link
	Expires time.Time `json:"expires"` // until when it is good
}
