//go:build linux

package engine

import "context"

// Identify returns id and name of the sandbox that has nameOrID as either. It only reads the database.
func (e *Engine) Identify(ctx context.Context, nameOrID string) (id, name string, err error) {
	rec, err := e.DB.Sandbox(ctx, nameOrID)
	return string(rec.ID), rec.Name, err
}
