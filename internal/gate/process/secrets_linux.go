//go:build linux && (amd64 || arm64)

package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/control"
	"github.com/coppice-dev/coppice/internal/gate/wallet"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/secret/line"
)

// trustFor makes the sandbox trust the gate's authority if the first grants, or later ones, require it.
func (w *warden) trustFor(s control.Secrets) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inspects = w.inspects || s.Later || len(s.Grants) > 0
}

// setSecrets replaces the grants, and the line unless conn is nil. It takes ownership of conn.
func (w *warden) setSecrets(s control.Secrets, conn *os.File) error {
	all, err := issued(w.sandbox, s.Grants)
	if err == nil && len(s.Grants) > 0 && !w.trusted() {
		err = fault.New(fault.Unsupported, "grants require a certificate, which a sandbox gets when it starts").
			WithHint("stop the sandbox, then try again: coppice stop NAME; the next command starts it")
	}
	if err != nil {
		if conn != nil {
			conn.Close()
		}
		return err
	}
	if conn != nil {
		old := w.line
		w.line = line.NewClient(conn, w.wallet.Drop) // a broken line drops "", which names no grant
		w.wallet.Connect(w.line)
		if old != nil {
			old.Close()
		}
	}
	if err := w.gate.SetSecrets(all); err != nil {
		return err
	}
	for _, a := range s.Answers {
		w.gate.Answer(a.ID, a.Allow)
	}
	return nil
}

// hangUp closes the line.
func (w *warden) hangUp() {
	if w.line != nil {
		w.line.Close()
		w.line = nil
	}
}

func (w *warden) trusted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.inspects
}

// issued converts the grants of a plan.
func issued(sandbox string, all []plan.Grant) (wallet.Grants, error) {
	out := wallet.Grants{Sandbox: sandbox, Used: map[string]int64{}, Approved: map[string][]string{}}
	for _, p := range all {
		var item grant.Item
		d := json.NewDecoder(bytes.NewReader(p.Item))
		d.DisallowUnknownFields()
		err := d.Decode(&item)
		if _, more := d.Token(); err == nil && !errors.Is(more, io.EOF) {
			err = fault.New(fault.Invalid, "there is data after the item")
		}
		if err != nil {
			return wallet.Grants{}, fault.New(fault.Internal, "read grant %s", p.Name).Because(err)
		}
		g, err := item.Grant(p.Name, p.Given)
		if err != nil {
			return wallet.Grants{}, err
		}
		if g.Kind = grant.Kind(p.Kind); !p.Revoked {
			if err := supported(g); err != nil {
				return wallet.Grants{}, err
			}
		}
		out.Issued = append(out.Issued,
			grant.Issued{Grant: g, Placeholder: p.Placeholder, Aliases: p.Aliases, Revoked: p.Revoked})
		out.Used[p.Name], out.Approved[p.Name] = p.Used, p.Approved
	}
	return out, nil
}

// supported returns an error if the gate cannot do what a grant says.
func supported(g grant.Grant) error {
	sites := []grant.In{grant.InHeader, grant.InBearer, grant.InBasic, grant.InGit, grant.InQuery, grant.InPath,
		grant.InCookie, grant.InForm, grant.InJSON, grant.InSigV4, grant.InSSH}
	for _, s := range g.Sites {
		if !slices.Contains(sites, s.In) {
			return fault.New(fault.Unsupported, "grant %s: site %s is not supported yet", g.Name, s).
				WithHint("use a site in requests, such as header, bearer, basic, query, path, cookie, json, form or sigv4")
		}
	}
	return nil
}
