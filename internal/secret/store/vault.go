package store

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Vault reads secrets from HashiCorp Vault or OpenBao, whose API is the same: versions 1 and 2 of the key-value engine,
// and engines that create a secret for each read, such as database roles, with a lease. It logs in when it is first
// used. Leases end with the token under which they were given, so a Value expires when either does.
type Vault struct {
	readOnly
	client  *client
	auth    VaultAuth
	now     func() time.Time
	session *session
}

// VaultOptions are the options of NewVault.
type VaultOptions struct {
	// Address is the URL of the server, https://HOST:PORT. Plain http is for loopback addresses only.
	Address string
	// Namespace is sent as X-Vault-Namespace; "" for none.
	Namespace string
	// CA is a file of certificates, in PEM, that replaces the system's; "" for the system's.
	CA   string
	Auth VaultAuth
	Now  func() time.Time // the clock
}

// The methods of VaultAuth.
const (
	VaultToken      = "token"      // Credential is a token
	VaultAppRole    = "approle"    // Role is the role's id, Credential its secret id
	VaultKubernetes = "kubernetes" // Credential is the JWT of a service account, Role a role of Vault's
)

// VaultAuth is how to log in.
type VaultAuth struct {
	Method string // VaultToken, VaultAppRole or VaultKubernetes
	Mount  string // the path of the method; "" for its usual one, which is its name
	Role   string
	// Credential reads the secret part, again for each login: the token of a pod, for example, is replaced in its file.
	Credential func(ctx context.Context) (Value, error)
}

// NewVault returns the store of a server, or Invalid. It does not connect.
func NewVault(o VaultOptions) (*Vault, error) {
	a := o.Auth
	if a.Mount == "" {
		a.Mount = a.Method
	}
	switch {
	case a.Method != VaultToken && a.Method != VaultAppRole && a.Method != VaultKubernetes:
		return nil, fault.New(fault.Invalid, "unknown method %.40q to log in to Vault", a.Method).
			WithHint("use token, approle or kubernetes")
	case a.Credential == nil || o.Now == nil:
		return nil, fault.New(fault.Invalid, "invalid options of Vault")
	case a.Method != VaultToken && a.Role == "":
		return nil, fault.New(fault.Invalid, "the role to log in to Vault with is empty")
	case a.Mount == "" || hasControl(a.Mount) || hasControl(o.Namespace):
		return nil, fault.New(fault.Invalid, "invalid mount or namespace of Vault")
	}
	c, err := newClient(o)
	if err != nil {
		return nil, err
	}
	v := &Vault{client: c, auth: a, now: o.Now, session: newSession()}
	v.readOnly = readOnly{"Vault", "write it with its own program: vault kv put"}
	return v, nil
}

// Close forgets the token, and closes idle connections. It neither revokes the token, since leases would end with it,
// nor waits for calls of other methods.
func (v *Vault) Close() { v.client.http.CloseIdleConnections(); v.session.forget() }

// Check implements Store: it logs in, and looks up the token.
func (v *Vault) Check(ctx context.Context) error {
	_, _, err := v.call(ctx, "GET", "auth/token/lookup-self", nil)
	return fault.Wrap(err, "check Vault")
}

// Get implements Store for the field ref.Field of the secret at ref.Path. A read of an engine that creates secrets
// creates one: the caller revokes it. For such a secret, the field username is the user of the value.
func (v *Vault) Get(ctx context.Context, ref Ref) (Value, error) {
	if err := ref.checkVault(); err != nil {
		return Value{}, err
	}
	value, err := v.get(ctx, ref)
	return value, fault.Wrap(err, "read %s#%s from Vault", ref.Path, ref.Field)
}

func (v *Vault) get(ctx context.Context, ref Ref) (Value, error) {
	m, err := v.mount(ctx, ref.Path)
	if err != nil {
		return Value{}, err
	}
	path := ref.Path
	if m.second {
		path = m.path + "data/" + strings.TrimPrefix(ref.Path, m.path)
	}
	a, t, err := v.call(ctx, "GET", path, nil)
	if err != nil {
		return Value{}, err
	}
	if a.LeaseID == "" || m.kv {
		return fieldOf(a.Data, m.second, ref.Field)
	}
	l := &vaultLease{vault: v, name: a.LeaseID, issuer: t.text}
	value, err := fieldOf(a.Data, false, ref.Field)
	if err == nil {
		if value.Until, err = l.set(a.LeaseDuration, t); err == nil {
			value.held().lease = l
			return value, nil
		}
		value.Close()
	}
	// The caller cannot revoke what it did not receive.
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	if rerr := l.revoke(undo); rerr != nil {
		return Value{}, fault.Wrap(err, "a lease that is not used could not be revoked (%s)", fault.KindOf(rerr))
	}
	return Value{}, err
}

// mounted describes the engine that has a path.
type mounted struct {
	path   string // ends with a slash
	kv     bool
	second bool // version 2 of the key-value engine, whose paths contain data/
}

// mount asks which engine has a path, as Vault's own program does. The answer is Denied if the token may not use the
// path.
func (v *Vault) mount(ctx context.Context, path string) (mounted, error) {
	a, _, err := v.call(ctx, "GET", "sys/internal/ui/mounts/"+path, nil)
	if err != nil {
		return mounted{}, err
	}
	var m struct {
		Path    string            `json:"path"`
		Type    string            `json:"type"`
		Options map[string]string `json:"options"`
	}
	if json.Unmarshal(a.Data, &m) != nil || !strings.HasSuffix(m.Path, "/") || !strings.HasPrefix(path+"/", m.Path) {
		return mounted{}, errAnswer()
	}
	kv := m.Type == "kv" || m.Type == "generic"
	return mounted{path: m.Path, kv: kv, second: kv && m.Options["version"] == "2"}, nil
}

// fieldOf returns a field of a secret. In version 2 of the key-value engine, the fields are a level deeper.
func fieldOf(data json.RawMessage, second bool, field string) (Value, error) {
	var o object
	if json.Unmarshal(data, &o) != nil || o == nil {
		return Value{}, errAnswer()
	}
	if second {
		inner := o["data"]
		if o = nil; json.Unmarshal(inner, &o) != nil || o == nil {
			return Value{}, fault.New(fault.NotFound, "the secret is deleted")
		}
	}
	raw, ok := o[field]
	if !ok {
		return Value{}, fault.New(fault.NotFound, "the secret has no field %.80q", field)
	}
	b, err := text(raw, "the field")
	if err != nil {
		return Value{}, err
	}
	user := ""
	if field != "username" {
		if user, err = o.user("username"); err != nil {
			wipe(b)
			return Value{}, err
		}
	}
	value, err := newValue(b)
	value.User = user
	return value, err
}

// escape escapes the segments of a path for a URL.
func escape(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}
