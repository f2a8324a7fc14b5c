//go:build linux

package engine

import "sync"

// claims are names of what one caller at a time may do something to. The zero value has none.
type claims struct {
	mu    sync.Mutex
	names map[string]bool // guarded by mu
}

// take reports whether nobody had the name, which the caller has then, until drop.
func (c *claims) take(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.names[name] {
		return false
	}
	if c.names == nil {
		c.names = map[string]bool{}
	}
	c.names[name] = true
	return true
}

func (c *claims) drop(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.names, name)
}
