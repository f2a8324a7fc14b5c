package broker

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secret/store"
)

// keepFor is how long the output of a command is kept, unless it expires earlier. Some commands ask their user.
const keepFor = 5 * time.Minute

// releasePatience is how long the broker waits for a server that takes a lease back.
const releasePatience = 20 * time.Second

// settings are those of a Vault server, and how to log in to it. They are encrypted where they are stored.
type settings struct {
	Address   string `json:"address"`
	Namespace string `json:"namespace,omitempty"`
	CA        string `json:"ca,omitempty"`
	Method    string `json:"method"`
	Role      string `json:"role,omitempty"`
	// Credential is a token or a secret id. If it is "", the token is read from File for each login.
	Credential string `json:"credential,omitempty"`
	File       string `json:"file,omitempty"`
}

// lookup returns a variable of an environment, or "".
func lookup(env []string, names ...string) string {
	for _, name := range names {
		for _, kv := range env {
			if rest, ok := strings.CutPrefix(kv, name+"="); ok && rest != "" {
				return rest
			}
		}
	}
	return ""
}

// settingsOf returns what the programs of Vault and OpenBao read from an environment. With VAULT_ROLE_ID and
// VAULT_SECRET_ID, the broker logs in by AppRole; otherwise with VAULT_TOKEN, or the token that vault login has stored.
func settingsOf(env []string) (*settings, error) {
	s := &settings{
		Address:   lookup(env, "VAULT_ADDR", "BAO_ADDR"),
		Namespace: lookup(env, "VAULT_NAMESPACE", "BAO_NAMESPACE"),
		CA:        lookup(env, "VAULT_CACERT", "BAO_CACERT"),
		Role:      lookup(env, "VAULT_ROLE_ID", "BAO_ROLE_ID"),
	}
	home := lookup(env, "HOME")
	secret, token := lookup(env, "VAULT_SECRET_ID", "BAO_SECRET_ID"), lookup(env, "VAULT_TOKEN", "BAO_TOKEN")
	switch {
	case s.Address == "":
		return nil, fault.New(fault.Invalid, "the address of Vault is unknown").
			WithHint("set it in your shell: export VAULT_ADDR=https://HOST:PORT")
	case s.Role != "" && secret != "":
		s.Method, s.Credential = store.VaultAppRole, secret
	case s.Role != "" || secret != "":
		return nil, fault.New(fault.Invalid, "AppRole requires both VAULT_ROLE_ID and VAULT_SECRET_ID").
			WithHint("export both, or neither")
	case token != "":
		s.Method, s.Credential = store.VaultToken, token
	case home != "":
		s.Method, s.File = store.VaultToken, filepath.Join(home, ".vault-token")
	default:
		return nil, fault.New(fault.Invalid, "no token for Vault was found").
			WithHint("log in: vault login; or export VAULT_TOKEN")
	}
	return s, nil
}

// vault returns the store of a server. Its token is kept for later calls.
func (c *catalog) vault(s *settings) (*store.Vault, error) {
	id, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.vaults[string(id)]; v != nil {
		return v, nil
	}
	credential := func(ctx context.Context) (store.Value, error) {
		if s.File != "" {
			return store.NewFile(c.now).Get(ctx, store.Ref{Path: s.File})
		}
		given := store.NewEnv(func(string) (string, bool) { return s.Credential, true })
		return given.Get(ctx, store.Ref{Name: "CREDENTIAL"})
	}
	v, err := store.NewVault(store.VaultOptions{Address: s.Address, Namespace: s.Namespace, CA: s.CA, Now: c.now,
		Auth: store.VaultAuth{Method: s.Method, Role: s.Role, Credential: credential}})
	if err == nil {
		c.vaults[string(id)] = v
	}
	return v, err
}

// read reads a secret from another store than the encrypted one.
func (c *catalog) read(ctx context.Context, s store.Source, at *settings) (store.Value, error) {
	switch {
	case s.Store == "file":
		return store.NewFile(c.now).Get(ctx, s.Ref)
	case s.Store == "command":
		return c.command(ctx, s.Ref)
	case s.Store == "vault" && at != nil:
		v, err := c.vault(at)
		if err != nil {
			return store.Value{}, err
		}
		return v.Get(ctx, s.Ref)
	}
	return store.Value{}, fault.New(fault.Corrupt, "the reference to a secret in store %.20q is damaged", s.Store)
}

// command returns the output of a command, which it keeps for a while.
func (c *catalog) command(ctx context.Context, ref store.Ref) (store.Value, error) {
	id, err := json.Marshal(ref)
	if err != nil {
		return store.Value{}, err
	}
	c.mu.Lock()
	env, forgot := c.env, c.forgot
	if v := c.kept[string(id)]; v != nil && c.now().Before(v.Until) {
		defer c.mu.Unlock()
		return v.Clone(), nil
	}
	c.mu.Unlock()
	v, err := store.NewCommand(env, c.now).Get(ctx, ref)
	if err != nil {
		return store.Value{}, err
	}
	c.keep(string(id), v.Clone(), forgot)
	return v, nil
}

// keep keeps the output of a command, unless all were forgotten since the command was started.
func (c *catalog) keep(id string, own store.Value, forgot int) {
	if end := c.now().Add(keepFor); own.Until.IsZero() || end.Before(own.Until) {
		own.Until = end
	}
	lockPages(own.Bytes())
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.forgot != forgot {
		own.Close()
		return
	}
	if old := c.kept[id]; old != nil {
		old.Close()
	}
	c.kept[id] = &own
}

// renew replaces the environment of commands, unless env is nil, and forgets their output. It returns the environment.
func (c *catalog) renew(env []string) []string {
	c.forget()
	c.mu.Lock()
	defer c.mu.Unlock()
	if env != nil {
		c.env = env
	}
	return c.env
}

// forget wipes the output of commands.
func (c *catalog) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgot++
	for id, v := range c.kept {
		v.Close()
		delete(c.kept, id)
	}
}

// release revokes the lease of a value that was only looked at. A lease that cannot be revoked ends by itself.
func (c *catalog) release(ctx context.Context, v store.Value) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releasePatience)
	defer cancel()
	_ = v.Revoke(ctx)
}

// lockPages keeps the pages with a value out of swap, as far as the limit of locked memory allows. They stay locked:
// the memory is used again.
func lockPages(b []byte) {
	if len(b) > 0 {
		_ = unix.Mlock(b)
	}
}
