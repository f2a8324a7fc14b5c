package meta

import (
	"context"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Policy returns the text of a policy that a sandbox names. The caller must compare its hash before trusting it. It
// returns Corrupt for a missing policy.
func (d *DB) Policy(ctx context.Context, digest string) (text string, err error) {
	found := false
	err = d.rows(ctx, "SELECT text FROM policies WHERE digest=?", func(s scanner) error {
		found = true
		return s.Scan(&text)
	}, digest)
	if err == nil && !found {
		err = noPolicy(digest)
	}
	if err != nil {
		return "", err
	}
	return d.openText(forPolicy, text)
}

// pin stores the policy that a record names, and its origins. If the origins are missing, it removes them from the
// record.
func (t *tx) pin(r *Sandbox) error {
	if !t.kept(r.Policy, r.PolicyText) && t.err == nil {
		return noPolicy(r.Policy)
	}
	if !t.kept(r.Origins, r.OriginsText) && t.err == nil {
		r.Origins = ""
	}
	return t.err
}

// kept stores a text by its digest, and reports whether it is stored afterwards. An empty text is not stored: it must
// be in the database already.
func (t *tx) kept(digest, text string) bool {
	if digest == "" {
		return true
	}
	if text != "" { // this also repairs a damaged one
		sealed, err := t.d.key.Seal(forPolicy, []byte(text))
		if t.err == nil {
			t.err = err
		}
		t.exec("INSERT INTO policies VALUES(?,?) ON CONFLICT(digest) DO UPDATE SET text=excluded.text WHERE "+
			"text<>excluded.text", digest, sealed)
		return true
	}
	found := false
	t.each("SELECT 1 FROM policies WHERE digest=?", func(scanner) error { found = true; return nil }, digest)
	return found
}

// dropPolicies removes the policies that no sandbox names.
func (t *tx) dropPolicies() {
	t.exec("DELETE FROM policies WHERE digest NOT IN (SELECT json_extract(config,'$.policy') FROM sandboxes WHERE " +
		"json_extract(config,'$.policy') IS NOT NULL" +
		" UNION SELECT json_extract(config,'$.origins') FROM sandboxes WHERE json_extract(config,'$.origins') IS NOT NULL)")
}

func noPolicy(digest string) error {
	return fault.New(fault.Corrupt, "policy %s not found", digest).WithHint(corruptHint)
}
