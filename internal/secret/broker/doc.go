// Package broker is the process coppice-broker, which holds the values of secrets of a home: it reads them from the
// stores of their owner, and gives them to the gates of sandboxes that were granted them. It imports fault, grant,
// policy, secret/client, secret/line, secret/sshkey, secret/store, thread, unixsock and vfs.
//
// The owner stores secrets, and the daemon registers the grants of sandboxes, over the control socket (secret/client).
// No answer there has a value. Gates ask for values over lines (secret/line), each of which belongs to one
// registration. The broker gives a line only what is registered for it, for hosts of the grant, until the grant ends,
// and ten times a second at most. Of a private key it gives signatures of logins instead.
//
// # Where values are
//
// Values are in the memory of the broker while it answers, and as long as a command's output is cached or a lease of
// Vault lasts. The memory is not dumped, and other processes of the user cannot attach to it; it is not swapped out
// where locking it is allowed, and otherwise pages with values that are kept are locked as far as the limit goes. On
// disk, values are encrypted: see package store.
//
// The broker does not set no_new_privs, which the commands of stores would inherit: that of 1Password, for one, is
// set-group-ID.
//
// # Lifetime
//
// One broker runs for a home: it holds the lock HOME/run/broker.lock. It exits when nothing was registered, connected
// or left to do for a minute. Registrations are in memory: the daemon repeats them for another broker, which it knows
// by Status.Boot. Leases are written down before their secrets are used, encrypted, in HOME/secrets/broker, so that a
// broker revokes those that an earlier one left when it was killed.
package broker
