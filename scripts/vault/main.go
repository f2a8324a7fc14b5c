// Command vault is a HashiCorp Vault server for tests: unsealed, in memory, with the key-value engine, database roles of
// PostgreSQL, and AppRole and Kubernetes as methods to log in. It prints one line of JSON with its address, root token
// and unseal key, and exits when its standard input ends. With -cert and -key it serves https.
//
// It is version 1.14.0, the last line under the MPL 2.0 that builds from tagged modules. Nothing of it is part of
// Coppice.
package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"os"

	hclog "github.com/hashicorp/go-hclog"
	kubernetes "github.com/hashicorp/vault-plugin-auth-kubernetes"
	kv "github.com/hashicorp/vault-plugin-secrets-kv"
	"github.com/hashicorp/vault/builtin/credential/approle"
	"github.com/hashicorp/vault/builtin/logical/database"
	vaulthttp "github.com/hashicorp/vault/http"
	"github.com/hashicorp/vault/internalshared/configutil"
	"github.com/hashicorp/vault/plugins/database/postgresql"
	"github.com/hashicorp/vault/sdk/helper/consts"
	"github.com/hashicorp/vault/sdk/logical"
	"github.com/hashicorp/vault/sdk/physical/inmem"
	"github.com/hashicorp/vault/vault"
)

// plugins is the registry of the plugin for PostgreSQL.
type plugins struct{}

const plugin = "postgresql-database-plugin"

func (plugins) Contains(name string, t consts.PluginType) bool {
	return name == plugin && t == consts.PluginTypeDatabase
}

func (p plugins) Get(name string, t consts.PluginType) (func() (any, error), bool) {
	return postgresql.New, p.Contains(name, t)
}

func (plugins) Keys(consts.PluginType) []string { return []string{plugin} }

func (plugins) DeprecationStatus(string, consts.PluginType) (consts.DeprecationStatus, bool) {
	return consts.Supported, true
}

func (plugins) IsBuiltinEntPlugin(string, consts.PluginType) bool { return false }

func main() {
	cert := flag.String("cert", "", "file of a certificate, to serve https")
	key := flag.String("key", "", "file of its key")
	flag.Parse()
	if err := serve(*cert, *key); err != nil {
		log.Fatal(err)
	}
}

func serve(cert, key string) error {
	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: os.Stderr})
	disk, err := inmem.NewInmem(nil, logger)
	if err != nil {
		return err
	}
	core, err := vault.NewCore(&vault.CoreConfig{
		Physical: disk, DisableMlock: true, Logger: logger, BuiltinRegistry: plugins{},
		LogicalBackends: map[string]logical.Factory{"kv": kv.Factory, "database": database.Factory},
		CredentialBackends: map[string]logical.Factory{
			"approle": approle.Factory, "kubernetes": kubernetes.Factory,
		},
	})
	if err != nil {
		return err
	}
	made, err := core.Initialize(context.Background(), &vault.InitParams{
		BarrierConfig: &vault.SealConfig{SecretShares: 1, SecretThreshold: 1}, RecoveryConfig: &vault.SealConfig{},
	})
	if err != nil {
		return err
	}
	unseal := hex.EncodeToString(made.SecretShares[0])
	if _, err := core.Unseal(made.SecretShares[0]); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	scheme := "http://"
	if cert != "" {
		scheme = "https://"
	}
	err = json.NewEncoder(os.Stdout).Encode(map[string]string{
		"address": scheme + listener.Addr().String(), "root": made.RootToken, "unseal": unseal,
	})
	if err != nil {
		return err
	}
	server := &http.Server{Handler: vaulthttp.Handler.Handler(&vault.HandlerProperties{
		Core: core, ListenerConfig: &configutil.Listener{}, DisablePrintableCheck: true,
	})}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = server.Close()
	}()
	if cert != "" {
		err = server.ServeTLS(listener, cert, key)
	} else {
		err = server.Serve(listener)
	}
	if err == http.ErrServerClosed {
		return nil
	}
	return err
}
