/* A stand-in for the driver's libnvidia-ml.so.1, with the layouts of nvml.h.

   NVML_SAYS tells what it answers: see `nvmlDeviceGetComputeRunningProcesses_v2`. Every process that
   initialises it is written to the file NVML_LOG. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId;
    unsigned int computeInstanceId;
} nvmlProcessInfo_v2_t;

enum { SUCCESS = 0, UNINITIALIZED = 1, NO_PERMISSION = 4, INSUFFICIENT_SIZE = 7, NO_DRIVER = 9 };
#define MIB (1ULL << 20)
#define NONE 0xFFFFFFFFU

static int users = 0;
static int devices[2]; /* a device is the address of its number */

static int says(const char *word) {
    const char *said = getenv("NVML_SAYS");
    return said != NULL && strcmp(said, word) == 0;
}

int nvmlInit_v2(void) {
    const char *path = getenv("NVML_LOG");
    FILE *log = path == NULL ? NULL : fopen(path, "a");
    if (log != NULL) {
        fprintf(log, "%d\n", (int)getpid());
        fclose(log);
    }
    if (says("no driver")) return NO_DRIVER;
    if (says("nothing in time")) sleep(60);
    users += 1;
    return SUCCESS;
}

int nvmlShutdown(void) {
    if (users == 0) return UNINITIALIZED;
    users -= 1;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    if (users == 0) return UNINITIALIZED;
    *count = 2;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, int **device) {
    if (users == 0) return UNINITIALIZED;
    if (index == 1 && says("the other is forbidden")) return NO_PERMISSION;
    if (index == 1 && says("the other is lost")) return 15;
    devices[index] = (int)index;
    *device = &devices[index];
    return SUCCESS;
}

#ifndef OLD
static void put(nvmlProcessInfo_v2_t *infos, unsigned int *at, unsigned int pid,
                unsigned long long used, unsigned int instance) {
    nvmlProcessInfo_v2_t info = {pid, used, instance, instance};
    infos[(*at)++] = info;
}

int nvmlDeviceGetComputeRunningProcesses_v2(int *device, unsigned int *count,
                                            nvmlProcessInfo_v2_t *infos) {
    nvmlProcessInfo_v2_t all[4];
    unsigned int here = (unsigned int)getpid(), found = 0;
    if (users == 0) return UNINITIALIZED;
    if (*device == 0) {
        if (says("numbers of elsewhere")) {
            put(all, &found, 2147480000U, 700 * MIB, NONE); /* this process, by its number there */
            put(all, &found, here, 900 * MIB, NONE);        /* another one, by its number there */
        } else if (says("not available")) {
            put(all, &found, here, ~0ULL, NONE);
        } else if (says("an instance")) {
            put(all, &found, here, 512 * MIB, 3);
        } else if (!says("others only")) {
            put(all, &found, 1, 900 * MIB, NONE); /* there is always a process 1 */
            put(all, &found, 0, 800 * MIB, NONE); /* one that cannot be seen from here */
            put(all, &found, here, says("too much") ? 5000 * MIB : 512 * MIB, NONE);
        } else {
            put(all, &found, 1, 900 * MIB, NONE);
        }
    } else if (says("both")) {
        put(all, &found, here, 300 * MIB, NONE);
    }
    if (*count < found) {
        *count = found;
        return INSUFFICIENT_SIZE;
    }
    if (found > 0) memcpy(infos, all, found * sizeof all[0]);
    *count = found;
    return SUCCESS;
}
#endif
