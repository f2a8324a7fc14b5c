// Package grants gives sandboxes grants, and revokes them: it stores them, registers those of live sandboxes with the
// broker of secrets, and tells the gates. It never sees the value of a secret. Package grant, which is pure, defines
// what a grant allows, and package secret/broker keeps the values. Only engine and daemon may import it.
//
// A grant is given, changed and revoked while the lock of its sandbox is held. The record in the ledger comes first,
// then the row in the database, then the registration with the broker, and last the gate. Revocation holds once the
// row says so: whatever fails afterwards, nothing registers the grant again.
package grants
