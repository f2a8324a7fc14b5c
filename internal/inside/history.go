package inside

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
)

// operation is a request that has no other fields.
type operation struct {
	Op string `json:"op"`
}

// Head returns HEAD.
func (c *Client) Head(ctx context.Context) (wire.HeadResult, error) {
	return call[wire.HeadResult](ctx, c, operation{"head"})
}

// Log lists the snapshots, newest first: at most limit.LineNodes. It has no drawing.
func (c *Client) Log(ctx context.Context) (wire.LogResult, error) {
	return call[wire.LogResult](ctx, c, operation{"log"})
}

// Branches lists the snapshots without children, newest first.
func (c *Client) Branches(ctx context.Context) (wire.BranchesResult, error) {
	return call[wire.BranchesResult](ctx, c, operation{"branches"})
}

// Show returns a snapshot and the paths that it changed.
func (c *Client) Show(ctx context.Context, ref string) (wire.ShowResult, error) {
	return call[wire.ShowResult](ctx, c, struct {
		operation
		Node string `json:"node"`
	}{operation{"show"}, ref})
}

// Diff lists the paths that differ between two states of this sandbox. It does not support req.Other, req.Stat and
// req.Limit.
func (c *Client) Diff(ctx context.Context, req wire.DiffRequest) (wire.DiffResult, error) {
	res, err := call[wire.DiffResult](ctx, c, struct {
		operation
		A     string   `json:"a"`
		B     string   `json:"b,omitempty"`
		Paths []string `json:"paths,omitempty"`
	}{operation{"diff"}, req.A, req.B, req.Paths})
	res.A, res.B = req.A, req.B // the answer has only the changes
	return res, err
}

// Commit takes a snapshot of the live state.
func (c *Client) Commit(ctx context.Context, message string) (wire.CommitResult, error) {
	return call[wire.CommitResult](ctx, c, struct {
		operation
		wire.CommitRequest
	}{operation{"commit"}, wire.CommitRequest{Message: message}})
}

// Checkout rewinds to a snapshot, in place whatever the request says: this process continues.
func (c *Client) Checkout(ctx context.Context, req wire.CheckoutRequest) (wire.MoveResult, error) {
	return call[wire.MoveResult](ctx, c, struct {
		operation
		wire.CheckoutRequest
	}{operation{"checkout"}, req})
}

// Mark gives snapshots a message.
func (c *Client) Mark(ctx context.Context, req wire.MarkRequest) (wire.CommitResult, error) {
	return call[wire.CommitResult](ctx, c, struct {
		operation
		wire.MarkRequest
	}{operation{"mark"}, req})
}

// Tags returns the tags.
func (c *Client) Tags(ctx context.Context) (wire.TagsResult, error) {
	return call[wire.TagsResult](ctx, c, operation{"tag"})
}

// SetTag gives a snapshot a tag. req.Ref must not be empty.
func (c *Client) SetTag(ctx context.Context, req wire.TagRequest) (wire.TagResult, error) {
	return call[wire.TagResult](ctx, c, struct {
		operation
		wire.TagRequest
	}{operation{"tag"}, req})
}

// Trial runs a command in a temporary fork, which ends with ctx.
func (c *Client) Trial(ctx context.Context, req wire.TrialRequest) (wire.Trial, error) {
	return call[wire.Trial](ctx, c, struct {
		operation
		wire.TrialRequest
	}{operation{"trial"}, req})
}
