package ledger

import (
	"slices"
	"strings"
	"sync"
)

const (
	// maxRiding is the maximum size of a capture that is stored in the intake, and maxWaiting that of all captures
	// that wait for a batch, in bytes. A capture beyond that is written to its own file at once.
	maxRiding  = 256 << 10
	maxWaiting = 1 << 20
)

// captures holds the captures that are not in their files yet. They are read from here.
type captures struct {
	mu      sync.Mutex
	held    map[string]*capture // by file
	waiting int                 // bytes of the captures that wait
}

// get returns the content of a capture that is held.
func (c *captures) get(file string) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.held[file]
	if one == nil {
		return nil, false
	}
	return one.content, true
}

// hold keeps a capture for the next batch, if there is space.
func (c *captures) hold(one *capture) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[one.file()] != nil {
		return true
	}
	if len(one.content) > maxRiding || c.waiting+len(one.content) > maxWaiting {
		return false
	}
	if c.held == nil {
		c.held = map[string]*capture{}
	}
	one.content, one.waiting = append([]byte{}, one.content...), true // never nil
	c.held[one.file()] = one
	c.waiting += len(one.content)
	return true
}

// next returns the captures that wait for a batch, ordered by their files.
func (c *captures) next() (all []*capture) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.held {
		if one.waiting {
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b *capture) int { return strings.Compare(a.file(), b.file()) })
	return all
}

// took notes that the intake has the captures.
func (c *captures) took(all []*capture) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range all {
		c.served(one)
	}
}

// placed notes that the file of a capture is written.
func (c *captures) placed(file string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.held[file]; one != nil {
		c.served(one)
		delete(c.held, file)
	}
}

// drop discards the chosen captures.
func (c *captures) drop(chosen func(*capture) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for file, one := range c.held {
		if chosen(one) {
			c.served(one)
			delete(c.held, file)
		}
	}
}

func (c *captures) served(one *capture) {
	if one.waiting {
		one.waiting = false
		c.waiting -= len(one.content)
	}
}
