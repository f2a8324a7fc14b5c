// Package javastore adds a certificate authority to Java's key stores: to JKS, Java's own format, and to PKCS #12
// without a password, the format of JDKs since version 18. Its input may be hostile: it allocates at most a small
// multiple of its size, and takes time linear in it. It imports only the standard library.
package javastore

// alias is the name of the authority in a store.
const alias = "coppice-gate"

// Add returns store with the DER certificate der as an additional authority. A store that already has it is returned
// unchanged. Add returns nil if store has another format, a password other than the usual one, or contains anything
// but certificates: every user of the sandbox can read the result, so it must not contain private keys. It does not
// modify store.
func Add(store, der []byte) []byte {
	if all := addJKS(store, der); all != nil {
		return all
	}
	return addPKCS12(store, der)
}
