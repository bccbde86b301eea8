// Package pkcs11 uses PKCS#11 modules: the libraries through which tokens are reached (OASIS PKCS #11 2.40). It has
// what signing with a key and making one needs, and nothing else.
//
// Modules are called without a C compiler, so that this program is built for all platforms in one place and of one
// Go, byte for byte the same. Sizes of numbers are those of 64-bit Linux and macOS.
package pkcs11

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// maxAttribute bounds attributes and signatures, in bytes. A point of P-256 has 67, an RSA signature 512.
const maxAttribute = 4 << 10

// Flags of tokens and sessions.
const (
	flagLoginRequired = 0x4
	flagProtectedPath = 0x100
	flagInitialized   = 0x400
	flagUserPINLocked = 0x40000

	sessionReadWrite = 0x2
	sessionSerial    = 0x4
)

// Token is a token that is in a slot.
type Token struct {
	Slot                               uint
	Label, Manufacturer, Model, Serial string
	// NeedsLogin says that private keys need a PIN.
	NeedsLogin bool
	// HasPINPad says that the token, or its reader, asks for the PIN itself.
	HasPINPad bool
	// IsLocked says that too many wrong PINs were shown.
	IsLocked bool
}

// String names the token for messages.
func (t *Token) String() string { return fmt.Sprintf("%q (serial %s)", t.Label, t.Serial) }

// Object is a key in a token, as long as a session lasts.
type Object uint

// User is who logs in.
type User uint

// Users.
const (
	// Owner uses keys.
	Owner User = 1
	// Again is the owner once more, for a key that asks for the PIN each time.
	Again User = 2
)

// Mechanism is a way to sign, or to make a key.
type Mechanism uint

// Mechanisms.
const (
	ECKeyPairGeneration Mechanism = 0x1040
	// ECDSA signs a digest. The signature is r and s, each with the length of the curve's order.
	ECDSA Mechanism = 0x1041
)

// AttributeKind is CK_ATTRIBUTE_TYPE.
type AttributeKind uint

// Kinds of attributes.
const (
	Class              AttributeKind = 0x0
	OnToken            AttributeKind = 0x1
	Private            AttributeKind = 0x2
	Label              AttributeKind = 0x3
	KeyType            AttributeKind = 0x100
	ID                 AttributeKind = 0x102
	Sensitive          AttributeKind = 0x103
	Sign               AttributeKind = 0x108
	Verify             AttributeKind = 0x10A
	Extractable        AttributeKind = 0x162
	ECParameters       AttributeKind = 0x180
	ECPoint            AttributeKind = 0x181
	AlwaysAuthenticate AttributeKind = 0x202
)

// Classes of objects, and types of keys.
const (
	PublicKeyClass  = 2
	PrivateKeyClass = 3

	RSAType = 0
	ECType  = 3
)

// Attribute is something that an object has.
type Attribute struct {
	Kind  AttributeKind
	Value []byte
}

// Number is an attribute that is a number.
func Number(kind AttributeKind, n uint64) Attribute {
	return Attribute{kind, binary.NativeEndian.AppendUint64(nil, n)}
}

// Truth is an attribute that is true or false.
func Truth(kind AttributeKind, is bool) Attribute {
	if is {
		return Attribute{kind, []byte{1}}
	}
	return Attribute{kind, []byte{0}}
}

// Code is what a module returns (CK_RV). All but 0 are errors.
type Code uint

// Codes that mean something to those who call.
const (
	PINIncorrect    Code = 0xA0
	PINInvalid      Code = 0xA1
	PINLengthRange  Code = 0xA2
	PINLocked       Code = 0xA4
	AlreadyLoggedIn Code = 0x100
	NotLoggedIn     Code = 0x101
	ReadOnly        Code = 0xE2
	AttributeType   Code = 0x12
)

var codes = map[Code]string{
	0x2: "CKR_HOST_MEMORY", 0x3: "CKR_SLOT_ID_INVALID", 0x5: "CKR_GENERAL_ERROR", 0x6: "CKR_FUNCTION_FAILED",
	0x7: "CKR_ARGUMENTS_BAD", 0x12: "CKR_ATTRIBUTE_TYPE_INVALID", 0x13: "CKR_ATTRIBUTE_VALUE_INVALID",
	0x30: "CKR_DEVICE_ERROR", 0x31: "CKR_DEVICE_MEMORY", 0x32: "CKR_DEVICE_REMOVED",
	0x54: "CKR_FUNCTION_NOT_SUPPORTED", 0x60: "CKR_KEY_HANDLE_INVALID", 0x63: "CKR_KEY_TYPE_INCONSISTENT",
	0x68: "CKR_KEY_FUNCTION_NOT_PERMITTED", 0x70: "CKR_MECHANISM_INVALID",
	PINIncorrect: "CKR_PIN_INCORRECT", PINInvalid: "CKR_PIN_INVALID", PINLengthRange: "CKR_PIN_LEN_RANGE",
	0xA3: "CKR_PIN_EXPIRED", PINLocked: "CKR_PIN_LOCKED", 0xB1: "CKR_SESSION_COUNT",
	0xB5: "CKR_SESSION_READ_ONLY", 0xD0: "CKR_TEMPLATE_INCOMPLETE", 0xD1: "CKR_TEMPLATE_INCONSISTENT",
	0xE0: "CKR_TOKEN_NOT_PRESENT", 0xE1: "CKR_TOKEN_NOT_RECOGNIZED", ReadOnly: "CKR_TOKEN_WRITE_PROTECTED",
	AlreadyLoggedIn: "CKR_USER_ALREADY_LOGGED_IN", NotLoggedIn: "CKR_USER_NOT_LOGGED_IN",
	0x102: "CKR_USER_PIN_NOT_INITIALIZED", 0x103: "CKR_USER_TYPE_INVALID",
	0x190: "CKR_CRYPTOKI_NOT_INITIALIZED",
}

func (c Code) Error() string {
	if name, ok := codes[c]; ok {
		return name
	}
	return fmt.Sprintf("CKR %#x", uint(c))
}

// padded is a text that spaces fill up.
func padded(text []byte) string { return string(bytes.TrimRight(text, " \x00")) }
