//go:build linux

package grants

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/visible"
)

// consentsKey is the setting that has the consents: a JSON list of wire.Consent.
const consentsKey = "grants.consents"

// maxConsents is the maximum number of consents in a home.
const maxConsents = 1000

// consents reads the consents.
func (c *Grants) consents(ctx context.Context) (all []wire.Consent, err error) {
	text, err := c.config.Store.Setting(ctx, consentsKey)
	if err != nil || text == "" {
		return nil, err
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fault.New(fault.Corrupt, "the consents to grants are damaged").Because(err).
			WithHint("create sandboxes without the project's file: coppice create --no-policy-files")
	}
	return all, nil
}

// keepConsents writes the consents.
func (c *Grants) keepConsents(ctx context.Context, all []wire.Consent) error {
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return c.config.Store.SetSetting(ctx, consentsKey, string(text))
}

// ListConsents returns the consents to grants that policy files of projects request, by directory and name.
func (c *Grants) ListConsents(ctx context.Context) (wire.ConsentsResult, error) {
	all, err := c.consents(ctx)
	slices.SortFunc(all, func(a, b wire.Consent) int {
		return cmp.Or(cmp.Compare(a.Root, b.Root), cmp.Compare(a.Grant, b.Grant), cmp.Compare(a.Digest, b.Digest))
	})
	return wire.ConsentsResult{Consents: append([]wire.Consent{}, all...)}, err
}

// Consent records the owner's consent to grants that the files of req request, and stores it.
func (c *Grants) Consent(ctx context.Context, req wire.ConsentRequest) (res wire.ConsentsResult, err error) {
	section, err := policies.Secrets(req.Policy)
	if err != nil {
		return res, err
	}
	if len(req.Digests) == 0 {
		return res, fault.New(fault.Invalid, "no request to consent to").WithHint("name the digests of requests")
	}
	c.consenting.Lock()
	defer c.consenting.Unlock()
	all, err := c.consents(ctx)
	if err != nil {
		return res, err
	}
	by := c.config.Clean(c.config.Caller(ctx))
	var drafts []draft
	for _, digest := range req.Digests {
		i := slices.IndexFunc(section.Requested, func(r grant.Request) bool { return r.Digest() == digest })
		if i < 0 {
			return res, fault.New(fault.Invalid, "the policy files do not request %q", digest).
				WithHint("see what they request: coppice grants consent FILE")
		}
		if at := slices.IndexFunc(all, func(o wire.Consent) bool { return o.Digest == digest }); at >= 0 {
			res.Consents = append(res.Consents, all[at])
			continue
		}
		one := consentTo(section.Requested[i])
		one.Given, one.By = c.config.Now().UTC(), by
		drafts = append(drafts, c.consentRecord("consented", one))
		res.Consents, all = append(res.Consents, one), append(all, one)
	}
	if len(all) > maxConsents {
		return wire.ConsentsResult{}, fault.New(fault.Invalid, "too many consents: %d; the limit is %d", len(all),
			maxConsents).WithHint("end some: coppice grants consent --list")
	}
	if drafts == nil {
		return res, nil
	}
	err = c.config.Recorder.Do(context.WithoutCancel(ctx), drafts, func(ctx context.Context) error {
		return c.keepConsents(ctx, all)
	})
	return res, err
}

// consentTo returns the consent to a request.
func consentTo(r grant.Request) wire.Consent {
	return wire.Consent{Digest: r.Digest(), Root: r.Root, Grant: r.Name, Secret: r.Grant.Secret, Hosts: hosts(r.Grant)}
}

// consentRecord returns the record of an event of a consent. It belongs to no sandbox.
func (c *Grants) consentRecord(event string, one wire.Consent) draft {
	body := &format.Grant{Event: event, Grant: one.Grant, By: one.By, Digest: one.Digest,
		What: c.config.Clean("secret " + one.Secret + " for " + strings.Join(one.Hosts, ", ") + ", requested in " + one.Root)}
	return draft{Sandbox: format.Host, Name: string(format.Host), Observer: format.ByDaemon, Body: body}
}

// RevokeConsent ends a consent, by its digest. Sandboxes keep their grants.
func (c *Grants) RevokeConsent(ctx context.Context, digest string) error {
	c.consenting.Lock()
	defer c.consenting.Unlock()
	all, err := c.consents(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(o wire.Consent) bool { return o.Digest == digest })
	if i < 0 {
		return fault.New(fault.NotFound, "no consent %q", digest).WithHint("list them: coppice grants consent --list")
	}
	one := all[i]
	one.By = c.config.Clean(c.config.Caller(ctx))
	drafts := []draft{c.consentRecord("withdrawn", one)}
	return c.config.Recorder.Do(context.WithoutCancel(ctx), drafts, func(ctx context.Context) error {
		return c.keepConsents(ctx, slices.Delete(all, i, i+1))
	})
}

// Wanted is what a new sandbox is granted.
type Wanted struct {
	Specs    map[string]wire.GrantSpec // by name
	Optional map[string]bool           // those without which the sandbox may be created, by name
	Notes    []string                  // name what is omitted
}

// Omitted is the note about an optional grant that a new sandbox does not have.
func Omitted(name string, why error) string {
	note := "the sandbox does not have the optional grant " + name + ": " + why.Error()
	if hint := fault.HintOf(why); hint != "" {
		note += " (" + hint + ")"
	}
	return note
}

// Wanted returns the grants of a new sandbox: specs, and those of its policy, in which specs replace grants of the same
// name. It refuses what a project's file requests without the consent of the owner, and what no gate can do.
func (c *Grants) Wanted(
	ctx context.Context, section grant.Section, specs map[string]wire.GrantSpec,
) (w Wanted, err error) {
	w = Wanted{Specs: map[string]wire.GrantSpec{}, Optional: map[string]bool{}}
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		spec := specs[name]
		if err := Check(name, spec, c.config.Now()); err != nil {
			return w, err
		}
		w.Specs[name] = spec
	}
	refused, err := c.unconsented(ctx, section.Requested)
	if err != nil {
		return w, err
	}
	for _, name := range slices.Sorted(maps.Keys(section.Given)) {
		said := section.Given[name]
		if _, replaced := specs[name]; replaced {
			continue
		}
		spec, optional, err := specOf(name, said.Value)
		if err != nil {
			return w, err
		}
		if err = refused[name]; err == nil {
			err = Check(name, spec, c.config.Now())
		}
		switch {
		case err == nil:
			w.Specs[name], w.Optional[name] = spec, optional
		case optional:
			w.Notes = append(w.Notes, Omitted(name, err))
		default:
			return w, err
		}
	}
	slices.Sort(w.Notes)
	return w, nil
}

// unconsented returns why requests of project's files are refused, by name.
func (c *Grants) unconsented(
	ctx context.Context, all []grant.Request,
) (refused map[string]error, err error) {
	refused = map[string]error{}
	if len(all) == 0 {
		return refused, nil
	}
	given, err := c.consents(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		digest := r.Digest()
		if slices.ContainsFunc(given, func(o wire.Consent) bool { return o.Digest == digest && digest != "" }) {
			continue
		}
		refused[r.Name] = fault.New(fault.Denied, "%s requests grant %s, secret %s for %s, to which you have not consented",
			r.At.Source, r.Name, r.Grant.Secret, strings.Join(hosts(r.Grant), ", ")).
			WithHint("see all of it, and consent: coppice grants consent %s", visible.Word(r.At.Source))
	}
	return refused, nil
}

// specOf returns a grant of a policy as a client gives it.
func specOf(name string, s policy.Secret) (spec wire.GrantSpec, optional bool, err error) {
	i, optional, err := grant.ItemOf(name, s)
	if err != nil {
		return spec, false, err
	}
	text, err := json.Marshal(i)
	if err == nil {
		err = json.Unmarshal(text, &spec)
	}
	return spec, optional, err
}
