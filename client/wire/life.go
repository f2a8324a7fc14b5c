package wire

// LifeRequest changes the lifetime and the idle timeout of a sandbox. Absent fields stay as they are; 0 is unlimited.
type LifeRequest struct {
	// time until the sandbox is removed, or, if it has tags, reduced to the tagged snapshots; 0 is never
	TTLMS      *int64 `json:"ttl_ms,omitempty"`
	IdleStopMS *int64 `json:"idle_stop_ms,omitempty"` // idle time after which its processes are stopped; 0 is never
}
