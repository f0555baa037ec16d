/* fake_nvml.c - a stand-in libnvidia-ml.so.1 for tests on machines without a GPU.
 *
 *   cc -shared -fPIC -O1 -Wall -Wextra -Wl,-soname,libnvidia-ml.so.1 \
 *      -o fake/libnvidia-ml.so.1 fake_nvml.c
 *   LD_LIBRARY_PATH=fake python -c 'import pynvml as n; n.nvmlInit(); ...'
 *
 * It has no state but the environment, read at nvmlInit:
 *   FAKE_NVML_INIT      return code of nvmlInit (9 = driver not loaded, 18 = version mismatch,
 *                       4 = no permission, 999 = unknown)
 *   FAKE_NVML_PROFILE   pcie2 (default: 2 x A10G, PHB, no NVLink) | mixed (an A10G and an L4) | nvswitch8 (8 x H100, NVSwitch)
 *                       | nvlink4 (4 x A100, NV4 bridges) | node4 (4 x L4, NODE) | mig (1 x A100, MIG on)
 *                       | gb10 (1 x GB10, unified memory) | wsl (1 x RTX, WDDM process memory n/a)
 *                       | none (0 GPUs)
 *   FAKE_NVML_DRIVER    driver version text, default 580.95.05
 *   FAKE_NVML_CUDA      CUDA version of the driver as an int, default 13000
 *   FAKE_NVML_LOST      index of a GPU that answers NVML_ERROR_GPU_IS_LOST (15)
 *   FAKE_NVML_BLOCK     index of a GPU whose memory call never returns (a wedged driver)
 *   FAKE_NVML_OLD       1: no version 2 of the memory call (drivers before R510)
 *   FAKE_NVML_FABRIC    fabric state 0 not supported, 1 not started, 2 in progress, 3 completed
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int ret_t;
enum { OK = 0, UNINIT = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, LOST = 15,
       ARG_VERSION = 25 };
#define MAXGPU 8
#define GIB (1ULL << 30)
#define MIB (1ULL << 20)

struct gpu { int index, lost; };            /* what a handle points at */
static struct gpu gpus[MAXGPU], migs[2];
static int ngpu, inited, fabric = -1, cuda = 13000, block = -1, old;
static const char *profile = "pcie2", *driver = "580.95.05";
static const char *name, *uuid_fmt = "GPU-%08x-0000-4000-8000-00000000f00d";
static unsigned long long total; static int cc_major, cc_minor, arch, links, nvl_version, ancestor;

static int is(const char *p) { return strcmp(profile, p) == 0; }
static int env_int(const char *k, int dflt) { const char *v = getenv(k); return v && *v ? atoi(v) : dflt; }
static ret_t put(char *buf, unsigned len, const char *s)
{ if (strlen(s) + 1 > len) return SMALL; strcpy(buf, s); return OK; }

ret_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    int rc = env_int("FAKE_NVML_INIT", 0);
    if (rc) return rc;
    const char *p = getenv("FAKE_NVML_PROFILE"); if (p && *p) profile = p;
    p = getenv("FAKE_NVML_DRIVER"); if (p && *p) driver = p;
    cuda = env_int("FAKE_NVML_CUDA", 13000); fabric = env_int("FAKE_NVML_FABRIC", -1);
    int lost = env_int("FAKE_NVML_LOST", -1);
    block = env_int("FAKE_NVML_BLOCK", -1); old = env_int("FAKE_NVML_OLD", 0);
    /* defaults: 2 x A10G over one host bridge */
    ngpu = 2; name = "NVIDIA A10G"; total = 24ULL * GIB - 553 * MIB; cc_major = 8; cc_minor = 6;
    arch = 7; links = 0; nvl_version = 0; ancestor = 30;
    if (is("nvswitch8")) { ngpu = 8; name = "NVIDIA H100 80GB HBM3"; total = 80ULL * GIB - 433 * MIB;
        cc_major = 9; cc_minor = 0; arch = 9; links = 18; nvl_version = 6; ancestor = 40; if (fabric < 0) fabric = 3; }
    else if (is("nvlink4")) { ngpu = 4; name = "NVIDIA A100-SXM4-80GB"; total = 80ULL * GIB;
        cc_major = 8; cc_minor = 0; arch = 7; links = 12; nvl_version = 5; ancestor = 50; }  /* a real A100 answers 5 (3.1), hwloc #658 */
    else if (is("node4")) { ngpu = 4; name = "NVIDIA L4"; total = 23034ULL * MIB; cc_major = 8; cc_minor = 9;
        arch = 8; ancestor = 40; }
    else if (is("mig")) { ngpu = 1; name = "NVIDIA A100-SXM4-40GB"; total = 40ULL * GIB; cc_major = 8; cc_minor = 0; }
    else if (is("gb10")) { ngpu = 1; name = "NVIDIA GB10"; total = 0; cc_major = 12; cc_minor = 1; arch = 10; }
    else if (is("wsl")) { ngpu = 1; name = "NVIDIA GeForce RTX 4090"; total = 24564ULL * MIB; cc_major = 8; cc_minor = 9; arch = 8; }
    else if (is("none")) ngpu = 0;
    if (fabric < 0) fabric = 0;
    for (int i = 0; i < ngpu; i++) gpus[i] = (struct gpu){ i, i == lost };
    for (int i = 0; i < 2; i++) migs[i] = (struct gpu){ 100 + i, 0 };
    inited++;
    return OK;
}
ret_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
ret_t nvmlShutdown(void) { if (!inited) return UNINIT; inited--; return OK; }
const char *nvmlErrorString(ret_t r) { static char b[40]; snprintf(b, sizeof b, "fake error %d", r); return b; }

#define NEED_INIT if (!inited) return UNINIT
#define DEV(d) NEED_INIT; if (!(d)) return INVALID; if ((d)->lost) return LOST
#define FULL(d) DEV(d); if ((d)->index >= 100) return NOT_SUPPORTED   /* not for MIG handles */

ret_t nvmlSystemGetDriverVersion(char *b, unsigned n) { NEED_INIT; return put(b, n, driver); }
ret_t nvmlSystemGetNVMLVersion(char *b, unsigned n) { char t[96]; snprintf(t, sizeof t, "13.%s", driver); return put(b, n, t); }
ret_t nvmlSystemGetCudaDriverVersion_v2(int *v) { NEED_INIT; *v = cuda; return OK; }
ret_t nvmlSystemGetCudaDriverVersion(int *v) { return nvmlSystemGetCudaDriverVersion_v2(v); }
ret_t nvmlDeviceGetCount_v2(unsigned *n) { NEED_INIT; *n = (unsigned)ngpu; return OK; }
ret_t nvmlDeviceGetHandleByIndex_v2(unsigned i, struct gpu **d)
{ NEED_INIT; if ((int)i >= ngpu) return INVALID; if (gpus[i].lost) return LOST; *d = &gpus[i]; return OK; }
static void uuid_of(struct gpu *d, char *b, size_t n)
{
    if (d->index >= 100) snprintf(b, n, "MIG-%08x-0000-5000-8000-00000000f00d", d->index);
    else snprintf(b, n, uuid_fmt, 0xA0000000u + (unsigned)d->index);
}
ret_t nvmlDeviceGetUUID(struct gpu *d, char *b, unsigned n) { DEV(d); char t[96]; uuid_of(d, t, sizeof t); return put(b, n, t); }
ret_t nvmlDeviceGetHandleByUUID(const char *u, struct gpu **d)
{
    NEED_INIT; char t[96];
    for (int i = 0; i < ngpu; i++) { uuid_of(&gpus[i], t, sizeof t); if (!strcmp(t, u)) { *d = &gpus[i]; return OK; } }
    if (is("mig")) for (int i = 0; i < 2; i++) { uuid_of(&migs[i], t, sizeof t); if (!strcmp(t, u)) { *d = &migs[i]; return OK; } }
    return NOT_FOUND;
}
ret_t nvmlDeviceGetName(struct gpu *d, char *b, unsigned n)
{
    DEV(d); char t[96]; const char *own = is("mixed") && d->index == 1 ? "NVIDIA L4" : name;
    snprintf(t, sizeof t, d->index >= 100 ? "%s MIG 3g.20gb" : "%s", own); return put(b, n, t);
}
ret_t nvmlDeviceGetIndex(struct gpu *d, unsigned *i) { DEV(d); *i = (unsigned)(d->index % 100); return OK; }
ret_t nvmlDeviceGetCudaComputeCapability(struct gpu *d, int *a, int *b) { DEV(d); *a = cc_major; *b = cc_minor; return OK; }
ret_t nvmlDeviceGetArchitecture(struct gpu *d, unsigned *a) { DEV(d); *a = (unsigned)arch; return OK; }

struct mem1 { unsigned long long total, free_, used; };
struct mem2 { unsigned version; unsigned long long total, reserved, free_, used; };
static unsigned long long dev_total(struct gpu *d) { return d->index >= 100 ? 20096ULL * MIB : total; }
ret_t nvmlDeviceGetMemoryInfo(struct gpu *d, struct mem1 *m)
{ DEV(d); if (is("gb10")) return NOT_SUPPORTED; m->total = dev_total(d); m->used = 1ULL * GIB; m->free_ = m->total - m->used; return OK; }
ret_t nvmlDeviceGetMemoryInfo_v2(struct gpu *d, struct mem2 *m)
{
    DEV(d); while (d->index == block) sleep(60);
    if (old) return 13;
    if (is("gb10")) return NOT_SUPPORTED;
    if (m->version != 0x02000028) return ARG_VERSION;
    m->total = dev_total(d); m->reserved = 500 * MIB; m->used = 524 * MIB; m->free_ = m->total - m->used - m->reserved; return OK;
}
ret_t nvmlDeviceGetBAR1MemoryInfo(struct gpu *d, struct mem1 *m)
{ FULL(d); if (is("gb10")) return NOT_SUPPORTED; m->total = 32ULL * GIB; m->used = 2 * MIB; m->free_ = m->total - m->used; return OK; }

struct pci { char legacy[16]; unsigned domain, bus, device, id, subid; char busid[32]; };
static void pci_of(int i, struct pci *p)
{
    memset(p, 0, sizeof *p); p->bus = 0x10 + (unsigned)i; p->id = 0x223710DE;
    snprintf(p->legacy, sizeof p->legacy, "0000:%02X:00.0", p->bus); snprintf(p->busid, sizeof p->busid, "00000000:%02X:00.0", p->bus);
}
ret_t nvmlDeviceGetPciInfo_v3(struct gpu *d, struct pci *p) { FULL(d); pci_of(d->index, p); return OK; }
#define CONST_UINT(fn, val) ret_t fn(struct gpu *d, unsigned *v) { FULL(d); if (is("gb10")) return NOT_SUPPORTED; *v = (val); return OK; }
CONST_UINT(nvmlDeviceGetCurrPcieLinkGeneration, 1)  /* idle GPUs drop the link */
CONST_UINT(nvmlDeviceGetMaxPcieLinkGeneration, 4)
CONST_UINT(nvmlDeviceGetGpuMaxPcieLinkGeneration, 4)
CONST_UINT(nvmlDeviceGetCurrPcieLinkWidth, 8)
CONST_UINT(nvmlDeviceGetMaxPcieLinkWidth, 16)
CONST_UINT(nvmlDeviceGetPowerManagementLimit, 300000)
CONST_UINT(nvmlDeviceGetPowerManagementDefaultLimit, 300000)
CONST_UINT(nvmlDeviceGetEnforcedPowerLimit, 250000)
ret_t nvmlDeviceGetPowerUsage(struct gpu *d, unsigned *v) { FULL(d); *v = 61234; return OK; }
ret_t nvmlDeviceGetPersistenceMode(struct gpu *d, unsigned *v) { DEV(d); *v = !is("wsl"); return OK; }
ret_t nvmlDeviceGetTemperature(struct gpu *d, unsigned s, unsigned *t) { FULL(d); if (s) return INVALID; *t = 41 + (unsigned)d->index; return OK; }
ret_t nvmlDeviceGetEccMode(struct gpu *d, unsigned *c, unsigned *p) { FULL(d); if (is("wsl") || is("gb10")) return NOT_SUPPORTED; *c = *p = 1; return OK; }
ret_t nvmlDeviceGetTotalEccErrors(struct gpu *d, unsigned t, unsigned c, unsigned long long *n) { FULL(d); (void)t; (void)c; *n = 0; return OK; }
ret_t nvmlDeviceGetRemappedRows(struct gpu *d, unsigned *a, unsigned *b, unsigned *c, unsigned *e) { FULL(d); *a = *b = *c = *e = 0; return OK; }
ret_t nvmlDeviceGetCurrentClocksEventReasons(struct gpu *d, unsigned long long *r) { FULL(d); *r = d->index ? 0x1 : 0x4; return OK; }
ret_t nvmlDeviceGetCurrentClocksThrottleReasons(struct gpu *d, unsigned long long *r) { return nvmlDeviceGetCurrentClocksEventReasons(d, r); }
ret_t nvmlDeviceGetVirtualizationMode(struct gpu *d, unsigned *m) { FULL(d); *m = 1; return OK; }
ret_t nvmlDeviceGetMigMode(struct gpu *d, unsigned *c, unsigned *p)
{ DEV(d); if (cc_major == 8 && cc_minor) return NOT_SUPPORTED; if (cc_major > 9) return NOT_SUPPORTED; *c = *p = is("mig"); return OK; }
ret_t nvmlDeviceGetMaxMigDeviceCount(struct gpu *d, unsigned *n) { FULL(d); *n = is("mig") ? 7 : 0; return OK; }
ret_t nvmlDeviceGetMigDeviceHandleByIndex(struct gpu *d, unsigned i, struct gpu **m)
{ FULL(d); if (!is("mig")) return NOT_SUPPORTED; if (i > 1) return NOT_FOUND; *m = &migs[i]; return OK; }
ret_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct gpu *m, struct gpu **d) { DEV(m); if (m->index < 100) return INVALID; *d = &gpus[0]; return OK; }
ret_t nvmlDeviceIsMigDeviceHandle(struct gpu *d, unsigned *y) { DEV(d); *y = d->index >= 100; return OK; }

ret_t nvmlSystemGetProcessName(unsigned pid, char *b, unsigned n) { NEED_INIT; return pid == 1 ? put(b, n, "/usr/bin/python3") : NOT_FOUND; }
ret_t nvmlDeviceGetGpuInstanceId(struct gpu *d, unsigned *v) { DEV(d); if (d->index < 100) return NOT_SUPPORTED; *v = (unsigned)d->index - 99; return OK; }
ret_t nvmlDeviceGetComputeInstanceId(struct gpu *d, unsigned *v) { DEV(d); if (d->index < 100) return NOT_SUPPORTED; *v = 0; return OK; }
struct proc { unsigned pid; unsigned long long used; unsigned gi, ci; };
ret_t nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *d, unsigned *n, struct proc *p)
{
    DEV(d);
    unsigned have = d->index == 0 ? 1 : 0;
    if (!have) { *n = 0; return OK; }
    if (*n < have || !p) { *n = have; return SMALL; }
    *n = have; p[0] = (struct proc){ 1, is("wsl") ? ~0ULL : 512 * MIB, 0xFFFFFFFFu, 0xFFFFFFFFu };
    return OK;
}

ret_t nvmlDeviceGetTopologyCommonAncestor(struct gpu *a, struct gpu *b, unsigned *l)
{ FULL(a); FULL(b); *l = a == b ? 0 : (unsigned)ancestor; return OK; }
ret_t nvmlDeviceGetP2PStatus(struct gpu *a, struct gpu *b, unsigned what, unsigned *s)
{ FULL(a); FULL(b); if (what > 5) return INVALID; *s = what == 2 ? (links ? 0 : 5) : (ngpu > 1 ? 0 : 5); return OK; }
ret_t nvmlDeviceGetNvLinkState(struct gpu *d, unsigned l, unsigned *s)
{ FULL(d); if ((int)l >= (links ? links : 18)) return INVALID; if (!links) return NOT_SUPPORTED; *s = 1; return OK; }
ret_t nvmlDeviceGetNvLinkVersion(struct gpu *d, unsigned l, unsigned *v)
{ FULL(d); if ((int)l >= (links ? links : 18)) return INVALID; if (!links) return NOT_SUPPORTED; *v = (unsigned)nvl_version; return OK; }
ret_t nvmlDeviceGetNvLinkRemoteDeviceType(struct gpu *d, unsigned l, unsigned *t)
{ FULL(d); if (!links) return NOT_SUPPORTED; if ((int)l >= links) return INVALID; *t = is("nvswitch8") ? 2 : 0; return OK; }
ret_t nvmlDeviceGetNvLinkRemotePciInfo_v2(struct gpu *d, unsigned l, struct pci *p)
{
    FULL(d); if (!links) return NOT_SUPPORTED; if ((int)l >= links) return INVALID;
    if (is("nvswitch8")) { pci_of(0x60 + (int)l % 4, p); return OK; }              /* an NVSwitch, not a GPU */
    int peer = (int)l / (links / (ngpu - 1)); if (peer >= d->index) peer++;        /* 12 links: 4 to each of 3 */
    pci_of(peer, p); return OK;
}
struct field { unsigned id, scope; long long ts, lat; int type, rc; union { double d; unsigned ui; unsigned long long ull; } v; };
ret_t nvmlDeviceGetFieldValues(struct gpu *d, int n, struct field *f)
{
    FULL(d);
    for (int i = 0; i < n; i++) {
        f[i].type = 1; f[i].rc = OK;
        switch (f[i].id) {
        case 90: case 164: f[i].v.ui = nvl_version == 6 ? 26562 : 25000; if (!links) f[i].rc = NOT_SUPPORTED; break;
        case 91: f[i].v.ui = (unsigned)links; break;                               /* NVLINK_LINK_COUNT */
        case 147: f[i].v.ui = is("nvswitch8") ? 18 : 0; break;
        default: f[i].rc = NOT_SUPPORTED;
        }
    }
    return OK;
}
struct fabric2 { unsigned version; unsigned char uuid[16]; int status; unsigned clique; unsigned char state; unsigned health; };
struct fabric1 { unsigned char uuid[16]; int status; unsigned clique; unsigned char state; };
ret_t nvmlDeviceGetGpuFabricInfo(struct gpu *d, struct fabric1 *f) { FULL(d); memset(f, 0, sizeof *f); f->state = (unsigned char)fabric; return OK; }
ret_t nvmlDeviceGetGpuFabricInfoV(struct gpu *d, struct fabric2 *f)
{
    FULL(d); if (f->version != 0x02000024) return ARG_VERSION;
    f->status = OK; f->clique = 0; f->state = (unsigned char)fabric; f->health = 0x2; return OK;
}
struct ccstate { unsigned environment, feature, devtools; };
ret_t nvmlSystemGetConfComputeState(struct ccstate *s) { NEED_INIT; if (cc_major < 9) return NOT_SUPPORTED; memset(s, 0, sizeof *s); return OK; }
ret_t nvmlDeviceGetNumaNodeId(struct gpu *d, int *n) { FULL(d); (void)n; return NOT_SUPPORTED; }  /* coherent (Grace) systems only */
