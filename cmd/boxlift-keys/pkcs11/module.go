package pkcs11

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// The places of functions in CK_FUNCTION_LIST, after its version.
const (
	placeInitialize        = 0
	placeFinalize          = 1
	placeGetSlotList       = 4
	placeGetTokenInfo      = 6
	placeOpenSession       = 12
	placeCloseSession      = 13
	placeLogin             = 18
	placeGetAttributeValue = 24
	placeFindObjectsInit   = 26
	placeFindObjects       = 27
	placeFindObjectsFinal  = 28
	placeSignInit          = 42
	placeSign              = 43
	placeGenerateKeyPair   = 59
	places                 = 68 // in version 2.0 and all later ones
)

// functionList is CK_FUNCTION_LIST.
type functionList struct {
	_         [2]byte // its version
	functions [places]uintptr
}

// attribute is CK_ATTRIBUTE.
type attribute struct {
	kind   uint
	value  *byte
	length uint
}

// mechanism is CK_MECHANISM.
type mechanism struct {
	kind uint
	_    uintptr // a parameter: none of those that are used has one
	_    uint
}

// initializeArgs is CK_C_INITIALIZE_ARGS.
type initializeArgs struct {
	_     [4]uintptr // functions for mutexes: those of the system are taken
	flags uint
	_     uintptr
}

const osLockingOK = 2 // CKF_OS_LOCKING_OK

// tokenInfo is CK_TOKEN_INFO.
type tokenInfo struct {
	label, manufacturer [32]byte
	model, serial       [16]byte
	flags               uint
	_                   [10]uint
	_                   [4]byte
	_                   [16]byte
}

// Module is a library that is loaded.
type Module struct {
	path              string
	finalize          func(reserved uintptr) uint
	getSlotList       func(present bool, slots *uint, count *uint) uint
	getTokenInfo      func(slot uint, info *tokenInfo) uint
	openSession       func(slot, flags uint, application, notify uintptr, session *uint) uint
	closeSession      func(session uint) uint
	login             func(session, user uint, pin *byte, length uint) uint
	getAttributeValue func(session, object uint, template *attribute, count uint) uint
	findObjectsInit   func(session uint, template *attribute, count uint) uint
	findObjects       func(session uint, objects *uint, most uint, count *uint) uint
	findObjectsFinal  func(session uint) uint
	signInit          func(session uint, m *mechanism, key uint) uint
	sign              func(session uint, data *byte, length uint, signature *byte, signatureLength *uint) uint
	generateKeyPair   func(session uint, m *mechanism, public *attribute, publics uint, private *attribute, privates uint,
		publicKey, privateKey *uint) uint
}

// Load loads the library in a file and begins to use it.
func Load(path string) (*Module, error) {
	library, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("load the PKCS#11 module %s: %w", path, err)
	}
	symbol, err := purego.Dlsym(library, "C_GetFunctionList")
	if err != nil {
		return nil, fmt.Errorf("load %s: it is no PKCS#11 module: %w", path, err)
	}
	var getFunctionList func(list **functionList) uint
	purego.RegisterFunc(&getFunctionList, symbol)
	var list *functionList
	if code := getFunctionList(&list); code != 0 || list == nil {
		return nil, fmt.Errorf("load the PKCS#11 module %s: C_GetFunctionList: %w", path, Code(code))
	}
	m := &Module{path: path}
	var initialize func(args *initializeArgs) uint
	for place, function := range map[int]any{
		placeInitialize: &initialize, placeFinalize: &m.finalize, placeGetSlotList: &m.getSlotList,
		placeGetTokenInfo: &m.getTokenInfo, placeOpenSession: &m.openSession, placeCloseSession: &m.closeSession,
		placeLogin: &m.login, placeGetAttributeValue: &m.getAttributeValue, placeFindObjectsInit: &m.findObjectsInit,
		placeFindObjects: &m.findObjects, placeFindObjectsFinal: &m.findObjectsFinal, placeSignInit: &m.signInit,
		placeSign: &m.sign, placeGenerateKeyPair: &m.generateKeyPair,
	} {
		if list.functions[place] == 0 {
			return nil, fmt.Errorf("load the PKCS#11 module %s: it lacks function %d", path, place)
		}
		purego.RegisterFunc(function, list.functions[place])
	}
	if code := Code(initialize(&initializeArgs{flags: osLockingOK})); code != 0 {
		return nil, fmt.Errorf("begin to use the PKCS#11 module %s: %w", path, code)
	}
	return m, nil
}

// Close ends the use of the module.
func (m *Module) Close() { m.finalize(0) }

// Tokens lists the tokens that are there and in use.
func (m *Module) Tokens() ([]Token, error) {
	slots := make([]uint, 256)
	count := uint(len(slots))
	if code := Code(m.getSlotList(true, &slots[0], &count)); code != 0 {
		return nil, fmt.Errorf("list the slots of %s: %w", m.path, code)
	}
	var tokens []Token
	for _, slot := range slots[:min(count, uint(len(slots)))] {
		var info tokenInfo
		if code := Code(m.getTokenInfo(slot, &info)); code != 0 {
			return nil, fmt.Errorf("read what token is in slot %d of %s: %w", slot, m.path, code)
		}
		if info.flags&flagInitialized == 0 {
			continue
		}
		tokens = append(tokens, Token{
			Slot: slot, Label: padded(info.label[:]), Manufacturer: padded(info.manufacturer[:]),
			Model: padded(info.model[:]), Serial: padded(info.serial[:]),
			NeedsLogin: info.flags&flagLoginRequired != 0, HasPINPad: info.flags&flagProtectedPath != 0,
			IsLocked: info.flags&flagUserPINLocked != 0,
		})
	}
	return tokens, nil
}

// Session is what keys in a token are used in.
type Session struct {
	m      *Module
	handle uint
}

// Open begins a session with the token in a slot. One that is not for writing makes no keys.
func (m *Module) Open(slot uint, forWriting bool) (*Session, error) {
	flags := uint(sessionSerial)
	if forWriting {
		flags |= sessionReadWrite
	}
	s := &Session{m: m}
	if code := Code(m.openSession(slot, flags, 0, 0, &s.handle)); code != 0 {
		return nil, fmt.Errorf("open a session: %w", code)
	}
	return s, nil
}

// Close ends the session.
func (s *Session) Close() { s.m.closeSession(s.handle) }

// Login shows the PIN. An empty one leaves it to the token's own PIN pad.
func (s *Session) Login(user User, pin []byte) error {
	if code := Code(s.m.login(s.handle, uint(user), first(pin), uint(len(pin)))); code != 0 && code != AlreadyLoggedIn {
		return code
	}
	return nil
}

// Find returns the objects with all of the attributes, at most so many.
func (s *Session) Find(most int, with ...Attribute) ([]Object, error) {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	template := templateOf(&pinner, with)
	if code := Code(s.m.findObjectsInit(s.handle, first(template), uint(len(template)))); code != 0 {
		return nil, fmt.Errorf("look for objects: %w", code)
	}
	defer s.m.findObjectsFinal(s.handle)
	handles := make([]uint, most)
	var found []Object
	for len(found) < most {
		var count uint
		if code := Code(s.m.findObjects(s.handle, &handles[0], uint(most-len(found)), &count)); code != 0 {
			return nil, fmt.Errorf("look for objects: %w", code)
		}
		if count == 0 {
			break
		}
		for _, handle := range handles[:min(count, uint(most-len(found)))] {
			found = append(found, Object(handle))
		}
	}
	return found, nil
}

// Attribute reads one attribute of an object.
func (s *Session) Attribute(of Object, kind AttributeKind) ([]byte, error) {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	value := make([]byte, maxAttribute)
	template := templateOf(&pinner, []Attribute{{kind, value}})
	if code := Code(s.m.getAttributeValue(s.handle, uint(of), &template[0], 1)); code != 0 {
		return nil, code
	}
	if template[0].length > maxAttribute {
		return nil, fmt.Errorf("the module says that attribute %#x has %d bytes", uint(kind), template[0].length)
	}
	return value[:template[0].length], nil
}

// SignInit begins a signature of a digest with a key. [Session.Sign] has to follow.
func (s *Session) SignInit(with Mechanism, key Object) error {
	if code := Code(s.m.signInit(s.handle, &mechanism{kind: uint(with)}, uint(key))); code != 0 {
		return code
	}
	return nil
}

// Sign makes the signature that was begun.
func (s *Session) Sign(digest []byte) ([]byte, error) {
	signature := make([]byte, maxAttribute)
	length := uint(len(signature))
	if code := Code(s.m.sign(s.handle, first(digest), uint(len(digest)), &signature[0], &length)); code != 0 {
		return nil, code
	}
	return signature[:min(length, maxAttribute)], nil
}

// GenerateKeyPair makes a key pair in the token.
func (s *Session) GenerateKeyPair(by Mechanism, public, private []Attribute) error {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	publics, privates := templateOf(&pinner, public), templateOf(&pinner, private)
	var publicKey, privateKey uint
	if code := Code(s.m.generateKeyPair(s.handle, &mechanism{kind: uint(by)}, first(publics), uint(len(publics)),
		first(privates), uint(len(privates)), &publicKey, &privateKey)); code != 0 {
		return code
	}
	return nil
}

// templateOf makes the list that a module reads. Its values stay where they are as long as they are pinned.
func templateOf(pinner *runtime.Pinner, list []Attribute) []attribute {
	template := make([]attribute, len(list))
	for i, a := range list {
		template[i] = attribute{kind: uint(a.Kind), value: first(a.Value), length: uint(len(a.Value))}
		if template[i].value != nil {
			pinner.Pin(template[i].value)
		}
	}
	return template
}

// first points to the first of a list, and nowhere for an empty one.
func first[T any](list []T) *T { return unsafe.SliceData(list[:len(list):len(list)]) }
