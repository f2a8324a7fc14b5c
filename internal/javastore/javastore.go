// Package javastore adds a certificate authority to Java's key stores: to JKS, Java's own
// format, and to PKCS #12 without a password, as JDKs bring their stores since version 18. What
// it reads may be hostile: it allocates no more than a small multiple of that, and takes time in
// proportion to it. It may be imported by the keeper; it imports the standard library alone.
package javastore

// alias is what the authority is called in a store.
const alias = "coppice-gate"

// Add returns store with the certificate der, in DER, as one more authority. A store that has it
// already is returned as it is. Add returns nil if store is of another format, has a password
// other than the usual one, or holds anything but certificates: every user of the sandbox can
// read what Add returns, and private keys are not for them. It does not change store.
func Add(store, der []byte) []byte {
	if all := addJKS(store, der); all != nil {
		return all
	}
	return addPKCS12(store, der)
}
