/* SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The C interface between the server and a repository agent, version 0.1. An agent is a shared library,
 * libtritonrepoagent_<name>.so, that looks at a model, or changes it, before the server loads it: it calls what stands
 * in the first part of this file and implements what stands in the last.
 *
 * Rules for all functions, unless a comment says otherwise:
 * - A function returns NULL on success, else an error that the caller deletes (TRITONSERVER_ErrorDelete).
 * - An object and a string that a function hands out stay the server's: they are valid as long as the object they were
 *   asked from, and must be neither changed nor freed.
 */
#ifndef TRITON_CORE_TRITONREPOAGENT_H_
#define TRITON_CORE_TRITONREPOAGENT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "triton/core/tritonserver.h"

#ifdef __cplusplus
extern "C" {
#endif

/* DECLSPEC marks what the server implements, ISPEC what the agent implements. */
#if defined(__GNUC__)
#define TRITONREPOAGENT_DECLSPEC __attribute__((__visibility__("default")))
#define TRITONREPOAGENT_ISPEC __attribute__((__visibility__("default")))
#else
#define TRITONREPOAGENT_DECLSPEC
#define TRITONREPOAGENT_ISPEC
#endif

typedef struct TRITONREPOAGENT_Agent TRITONREPOAGENT_Agent;
typedef struct TRITONREPOAGENT_AgentModel TRITONREPOAGENT_AgentModel;

/* ------------------------------------------------------------------------------------------------------------------
 * Version. An agent loads where the major numbers are equal and the server's minor number is not the lower one.
 */

#define TRITONREPOAGENT_API_VERSION_MAJOR 0
#define TRITONREPOAGENT_API_VERSION_MINOR 1

/* The version that the running server implements. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ApiVersion(uint32_t* major, uint32_t* minor);

/* The kind of a model's location. */
typedef enum TRITONREPOAGENT_artifacttype_enum {
  /* A folder that can be read with the functions of the operating system. */
  TRITONREPOAGENT_ARTIFACT_FILESYSTEM,
  /* A folder of a remote storage, by its URL. */
  TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM
} TRITONREPOAGENT_ArtifactType;

/* The actions on a model. Every LOAD is followed by LOAD_COMPLETE or by LOAD_FAIL, every UNLOAD by
 * UNLOAD_COMPLETE. */
typedef enum TRITONREPOAGENT_actiontype_enum {
  TRITONREPOAGENT_ACTION_LOAD,
  TRITONREPOAGENT_ACTION_LOAD_COMPLETE,
  TRITONREPOAGENT_ACTION_LOAD_FAIL,
  TRITONREPOAGENT_ACTION_UNLOAD,
  TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE
} TRITONREPOAGENT_ActionType;

/* ------------------------------------------------------------------------------------------------------------------
 * Models
 */

/* Where the model lies now. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelRepositoryLocation(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, TRITONREPOAGENT_ArtifactType* artifact_type,
    const char** location);

/* Makes an empty place that the agent can write a changed model to. The agent gives it back with LocationRelease, or
 * the server does when the model is unloaded. Calling again with the same type gives the same place. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelRepositoryLocationAcquire(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ArtifactType artifact_type,
    const char** location);
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelRepositoryLocationRelease(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const char* location);

/* Tells the server to take the model from another place. Only while the action LOAD is handled. The place must last
 * until the model is unloaded. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelRepositoryUpdate(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ArtifactType artifact_type,
    const char* location);

/* The parameters that the model's configuration has for this agent. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelParameterCount(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, uint32_t* count);
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelParameter(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const uint32_t index, const char** parameter_name,
    const char** parameter_value);

/* The model's configuration as JSON, as it was before the server completed anything, in a new message that belongs to
 * the caller (TRITONSERVER_MessageDelete). config_version is the version of the JSON's form: 1. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelConfig(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const uint32_t config_version,
    TRITONSERVER_Message** model_config);

/* A pointer that the agent keeps with the model; NULL until it is set. The server does nothing with it. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelState(
    TRITONREPOAGENT_AgentModel* model, void** state);
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelSetState(
    TRITONREPOAGENT_AgentModel* model, void* state);

/* ------------------------------------------------------------------------------------------------------------------
 * Agents
 */

/* A pointer that the agent keeps with the object; NULL until it is set. The server does nothing with it. */
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_State(TRITONREPOAGENT_Agent* agent, void** state);
TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_SetState(TRITONREPOAGENT_Agent* agent, void* state);

/* ------------------------------------------------------------------------------------------------------------------
 * The functions that an agent implements: TRITONREPOAGENT_ModelAction, and any of the others. The server takes over a
 * returned error.
 */

/* Called once after the library was loaded, before everything else, and once before the server forgets it. */
TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_Initialize(TRITONREPOAGENT_Agent* agent);
TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_Finalize(TRITONREPOAGENT_Agent* agent);

/* Called before the first action on a model that names the agent, and after the last one. */
TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelInitialize(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model);
TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelFinalize(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model);

/* Called for what happens to a model. An error for LOAD keeps the model from being loaded; other errors change
 * nothing. */
TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ActionType action_type);

#ifdef __cplusplus
}
#endif

#endif  /* TRITON_CORE_TRITONREPOAGENT_H_ */
